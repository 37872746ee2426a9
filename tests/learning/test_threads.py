"""Learning gives the same bytes on machines with different numbers of cores."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from datamask.config.compute import Compute
from datamask.config.selection import Selection
from datamask.learning.learner import LearnedMask, learn_mask

ROWS, WIDTH = 2000, 256
"""Sums over WIDTH x WIDTH values are long enough for torch to divide them between threads."""


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def learned(selection: Selection, threads: int) -> LearnedMask:
    """A mask of clustered vectors, learned with some number of threads."""
    torch.set_num_threads(threads)
    generator = np.random.default_rng(0)
    centres = generator.standard_normal((20, WIDTH))
    features = centres[generator.integers(20, size=ROWS)]
    features = features + 0.7 * generator.standard_normal(features.shape)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    quality = generator.standard_normal(ROWS)
    return learn_mask(
        features.astype(np.float32), quality, selection, ROWS // 5, seed=3, compute=Compute()
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"metric": "disf"},
        {"metric": "disf", "estimator": "policy_gradient", "steps": 5},
        {"metric": "vendi"},
        {"metric": "log_determinant"},
        {"metric": "facility_location"},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_the_number_of_threads_changes_no_byte(settings: dict[str, object]) -> None:
    """Of logits and values."""
    one, *others = (learned(Selection(ratio=0.2, **settings), threads) for threads in (1, 2, 3))
    for other in others:
        assert other.logits.tobytes() == one.logits.tobytes()
        assert other.metrics == one.metrics
