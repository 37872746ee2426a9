"""The published logit: one meaning in every shard, and the mask itself by its sign."""

import numpy as np
import pytest

from datamask.config.compute import Compute
from datamask.config.selection import Selection
from datamask.learning.learner import learn_mask
from tests.selection.runs import by_definition

CPU = Compute(device="cpu")


def learned(shard, selection, number, ids=None):
    """A mask of a shard, on the CPU."""
    features, quality = shard
    ids = np.asarray([f"{row:05d}" for row in range(len(quality))]) if ids is None else ids
    return learn_mask(features, quality, selection, number, seed=3, ids=ids, compute=CPU)


@pytest.mark.parametrize(
    "selection",
    [
        Selection(metric="disf", steps=20),
        Selection(metric="pairwise", quality_weight=0.1, steps=20),
        Selection(metric="facility_location", steps=20),
        Selection(
            metric="disf", estimator="policy_gradient", steps=3, rollouts=8, swap_refinement=0
        ),
        Selection(metric="pairwise", scale_terms=False, steps=20),
        Selection(method="random", metric="disf"),
        Selection(method="greedy", metric="pairwise"),
    ],
    ids=lambda s: f"{s.method}-{s.metric}-{s.estimator}-{s.scale_terms}",
)
@pytest.mark.parametrize("number", [0, 1, 30, 119, 120])
def test_the_mask_is_what_has_a_logit_above_zero(make_shard, selection, number):
    """For every method; the same as the first S by (logit, quality, id)."""
    features, quality = make_shard(120, 8, 1)
    quality = np.round(quality, 1)  # many ties
    found = learned((features, quality), selection, number)
    order = sorted(range(120), key=lambda row: (-found.logits[row], -quality[row], row))
    assert found.selected.sum() == number
    assert set(order[:number]) == set(np.flatnonzero(found.selected))
    assert ((found.logits > 0) == found.selected).all()


def test_by_quality_alone_logits_are_shares_of_the_best_gain(make_shard):
    """Whatever the spread of quality, the shard's size and the share that is kept."""
    for rows, number, spread in ((400, 40, 1.0), (90, 45, 30.0), (900, 9, 0.01)):
        features, quality = make_shard(rows, 8, rows)
        found = learned(
            (features, spread * quality), Selection(metric="disf", quality_weight=1.0), number
        )
        most = np.sort(quality)[-number:].mean() - quality.mean()
        assert found.metrics["scales"]["quality"] == pytest.approx(spread * most, rel=1e-4)
        expected = (quality - quality.mean()) / most
        np.testing.assert_allclose(found.logits - found.logits.mean(), expected, atol=2e-3)


@pytest.mark.parametrize("metric", ["pairwise", "disf"])
def test_a_difference_of_logits_is_what_a_swap_changes(make_shard, metric):
    """Against the objective of masks in which two documents changed places, by numpy alone."""
    features, quality = make_shard(900, 6, 2)
    found = learned((features, quality), Selection(metric=metric, steps=20), 300)
    scales = found.metrics["scales"]

    def value(mask):
        values = by_definition(features[mask].astype(np.float64), quality[mask], metric)
        return 0.5 * values["quality"] / scales["quality"] - 0.5 * values[metric] / scales[metric]

    generator = np.random.default_rng(0)
    # Away from the threshold, at which logits are cut off.
    inside = generator.permutation(np.flatnonzero(found.logits > 0.05))[:20]
    outside = generator.permutation(np.flatnonzero(found.logits < -0.05))[:20]
    before, swapped = value(found.selected), []
    for leaving, coming in zip(inside, outside, strict=True):
        mask = found.selected.copy()
        mask[[leaving, coming]] = False, True
        swapped.append((value(mask) - before) * 300)
    expected = found.logits[outside] - found.logits[inside]
    # The second order of a swap is a few percent of the largest differences, which are about 2.
    np.testing.assert_allclose(swapped, expected, rtol=0.15, atol=0.3)
    assert np.corrcoef(swapped, expected)[0, 1] > 0.9
