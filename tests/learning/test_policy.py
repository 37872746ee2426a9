"""Masks are drawn as the policy says, and logits end as masks of the right size."""

import itertools

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from datamask.learning.policy import (
    expected_mask,
    gumbel_top_s,
    initial_logits,
    top_s,
)


def test_masks_follow_draws_without_replacement():
    """Frequencies of masks match successive draws from the softmax, by enumeration."""
    logits = torch.tensor([0.0, 1.0, -0.5, 0.7])
    weights = torch.softmax(logits.double(), 0).numpy()
    exact = {}
    for first, second in itertools.permutations(range(4), 2):
        chance = weights[first] * weights[second] / (1 - weights[first])
        key = tuple(sorted((first, second)))
        exact[key] = exact.get(key, 0) + chance
    generator = torch.Generator().manual_seed(0)
    masks = gumbel_top_s(logits, 2, 40_000, generator)
    for (first, second), chance in exact.items():
        seen = float((masks[:, first] & masks[:, second]).double().mean())
        assert abs(seen - chance) < 5 * np.sqrt(chance * (1 - chance) / 40_000)


def test_ties_go_to_quality_then_to_the_smaller_id():
    """Equal logits are settled by quality, equal quality by id."""
    logits = np.array([1.0, 1.0, 1.0, 2.0])
    quality = np.array([0.0, 5.0, 0.0, -9.0])
    id_order = np.array([2, 1, 0, 3])
    assert top_s(logits, quality, id_order, 3).tolist() == [False, True, True, True]
    # Initial logits by quality rise with it, whatever its sign.
    initial = initial_logits("quality", np.array([-3.0, 0.0, 2.0]))
    assert np.isfinite(initial).all() and (np.diff(initial) > 0).all()
    assert not initial_logits("quality", np.ones(3)).any()


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=60), st.booleans())
@settings(max_examples=100, deadline=None)
def test_a_mask_has_as_many_documents_as_expected(logits, is_drawn):
    """In all; if drawn, also among any documents in a row, and else those of the highest logits."""
    mask = expected_mask(torch.tensor(logits, dtype=torch.float64), is_drawn).numpy()
    inclusion = 1 / (1 + np.exp(-np.array(logits)))
    assert abs(mask.sum() - inclusion.sum()) < 0.5 + 1e-9
    if not is_drawn:
        assert not mask.any() or mask.all() or inclusion[mask].min() >= inclusion[~mask].max()
        return
    for start, stop in itertools.combinations(range(len(logits) + 1), 2):
        assert abs(mask[start:stop].sum() - inclusion[start:stop].sum()) < 1 + 1e-9
