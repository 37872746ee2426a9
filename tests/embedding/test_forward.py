"""Batches by tokens: every text once, no batch too large, little padding."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from datamask.embedding.forward import token_batches, token_metrics

COUNTS = st.lists(st.integers(1, 600), max_size=80).map(np.asarray)


@given(counts=COUNTS, most=st.integers(1, 3000))
def test_every_text_is_in_one_batch_that_fits(counts: np.ndarray, most: int) -> None:
    """Padded by hand, no batch of several texts has more tokens than it may; the sum agrees."""
    batches = token_batches(counts, most)
    assert sorted(row for batch in batches for row in batch) == list(range(len(counts)))
    whole = 0
    for batch in batches:
        width = 0
        for row in batch:
            width = max(width, counts[row])
        cells = sum(1 for _ in batch for _ in range(width))
        assert cells <= most or len(batch) == 1
        whole += cells
    assert token_metrics(counts, counts, batches, 1)["padded_tokens"] == whole


def test_padding_of_long_and_short_texts_together_is_avoided() -> None:
    """Lengths as the web has them: a tenth of the padding of batches in the order of arrival."""
    counts = np.random.default_rng(0).lognormal(5, 1, 4096).astype(int).clip(1, 512)
    in_order = [counts[start : start + 32] for start in range(0, 4096, 32)]
    before = sum(len(batch) * int(batch.max()) for batch in in_order) - counts.sum()
    metrics = token_metrics(counts, counts, token_batches(counts, 32 * 512), 1)
    after = metrics["padded_tokens"] - counts.sum()
    assert after < before / 10


@given(counts=COUNTS, most=st.integers(1, 3000))
def test_lengths_do_not_mix(counts: np.ndarray, most: int) -> None:
    """The shortest text of a batch is at least as long as the longest of the next."""
    batches = token_batches(counts, most)
    for one, other in itertools.pairwise(batches):
        assert counts[one].min() >= counts[other].max()
