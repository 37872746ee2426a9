"""Learning gives the same bytes on machines with different numbers of cores."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits

from datamask.config.compute import Compute
from datamask.config.selection import Selection
from datamask.learning import neighbours
from datamask.learning.learner import LearnedMask, learn_mask
from datamask.learning.policy import long_sum, solve_threshold
from tests.conftest import nightly

SHAPES = ((1500, 192), (70_001, 8))
"""Sums over 192 x 192 values, and over 70,001 documents, are divided between torch's threads."""

VENDI = "benchmarks.spectrum:Vendi"

THREADS = (1, 3)
"""Numbers of threads that are compared."""


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def learned(selection: Selection, threads: int, rows: int, width: int) -> LearnedMask:
    """A mask of clustered vectors, learned with some number of threads."""
    torch.set_num_threads(threads)
    generator = np.random.default_rng(0)
    centres = generator.standard_normal((20, width))
    features = centres[generator.integers(20, size=rows)]
    features = features + 0.7 * generator.standard_normal(features.shape)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    quality = generator.standard_normal(rows)
    with threadpool_limits(threads):  # numpy's too
        return learn_mask(
            features.astype(np.float32), quality, selection, rows // 5, seed=3, compute=Compute()
        )


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        ({"metric": "disf"}, SHAPES[0]),
        ({"metric": "disf"}, (500, 700)),  # fewer documents than dimensions
        *nightly(({"metric": "disf"}, SHAPES[1])),
        *(pytest.param({"metric": VENDI, "steps": 3}, x, marks=pytest.mark.slow) for x in SHAPES),
        *nightly(({"metric": "disf", "estimator": "policy_gradient", "steps": 3}, SHAPES[1])),
        ({"metric": "facility_location"}, (4500, 64)),  # more than one block
    ],
    ids=str,
)
def test_the_number_of_threads_changes_no_byte(settings, shape, monkeypatch):
    """Of logits and values."""
    monkeypatch.setattr(neighbours, "WHOLE", 2000)
    selection = Selection(ratio=0.2, **settings)
    one, *others = (learned(selection, threads, *shape) for threads in THREADS)
    for other in others:
        assert other.logits.tobytes() == one.logits.tobytes()
        assert other.metrics == one.metrics


@pytest.mark.slow
def test_nor_does_a_comparator():
    """Of the ranks of documents."""
    selection = Selection(ratio=0.2, metric="disf", method="d4")
    found = {learned(selection, threads, 6000, 384).logits.tobytes() for threads in THREADS}
    assert len(found) == 1


def test_a_threshold_of_many_documents_does_not_depend_on_threads():
    """The sums that it is found with are longer than what one thread of torch adds up."""
    logits = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    weight, found = torch.rand_like(logits) + 0.1, set()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.add(solve_threshold(logits, 12_345.0))
        found.add(solve_threshold(logits, 12_345.0, weight_N=weight) + 1000)
        found.add(long_sum(logits) + 1e6)
    assert len(found) == 3
    assert long_sum(logits) == pytest.approx(float(logits.numpy().astype(np.float64).sum()))
