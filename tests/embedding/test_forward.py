"""Batches by tokens: every text once, no batch too large, little padding."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from datamask.embedding.forward import token_batches, token_metrics

COUNTS = st.lists(st.integers(1, 600), max_size=80).map(np.asarray)


@given(counts=COUNTS, most=st.integers(1, 3000))
def test_every_text_is_in_one_batch_that_fits(counts, most):
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


@given(counts=COUNTS, most=st.integers(1, 3000))
def test_lengths_do_not_mix(counts, most):
    """The shortest text of a batch is at least as long as the longest of the next."""
    batches = token_batches(counts, most)
    for one, other in itertools.pairwise(batches):
        assert counts[one].min() >= counts[other].max()
