"""The scales of terms, against the definition: many thousands of random subsets, by numpy."""

from itertools import product

import numpy as np
import pytest
import torch

from datamask.config.compute import Compute
from datamask.learning import scales
from datamask.learning.data import highest_order, moments_of
from datamask.learning.learner import shard_data
from datamask.objectives.weighted import WeightedTerm, load_objective
from tests.conftest import mostly_nightly

METRICS = ["quality", "pairwise", "disf", "facility_location"]
NAMES = [*METRICS, "span"]
SHAPES = [(300, 8, 30), (400, 24, 12), (1000, 12, 500), (300, 12, 290)]


class Span:
    """Range of quality among the selected: an own objective that is no function of moments."""

    name = "span"
    maximise = True

    def values(self, masks_GB, batch):
        """Largest less least."""
        masked = torch.where(masks_GB, batch.quality_B, torch.nan)
        return masked.nan_to_num(-1e9).amax(1) - masked.nan_to_num(1e9).amin(1)


def by_definition(name, features, quality, similarity, rows):
    """A term's raw value for some rows."""
    if name == "quality":
        return quality[rows].mean()
    if name == "span":
        return quality[rows].max() - quality[rows].min()
    chosen = features[rows]
    if name == "pairwise":
        return (np.square(chosen.sum(0)).sum() - len(rows)) / (len(rows) * (len(rows) - 1))
    if name == "facility_location":
        return similarity[rows].max(0).mean()
    correlation = np.corrcoef(chosen.T)
    return (np.square(correlation).sum() - len(correlation)) / 10_000


def drawn(name, features, quality, count, size):
    """Values of that many random subsets."""
    random = np.random.default_rng(7)
    wide = features.astype(np.float64)
    given = (name, wide, quality, wide @ wide.T)
    subsets = (random.choice(len(wide), size, replace=False) for _ in range(count))
    return np.array([by_definition(*given, rows) for rows in subsets])


def spread_of(objective, features, quality, size, sample=None):
    """What the library says; *sample*: rows that stand for all documents."""
    data = shard_data(features, quality, {}, Compute(device="cpu"))
    terms = [WeightedTerm(objective, 1.0)]
    ones = torch.ones(data.num_documents)
    totals = moments_of(data, ones, max(highest_order(terms), 0))
    if sample is not None:
        data = shard_data(features[sample], quality[sample], {}, Compute(device="cpu"))
    return scales.random_subsets(terms, totals, data, size, 3)[objective.name]


@pytest.mark.parametrize(
    ("name", "shape"),
    mostly_nightly(
        [
            *((name, SHAPES[0]) for name in NAMES),
            *(("pairwise", SHAPES[1]), ("quality", SHAPES[2]), ("span", SHAPES[3])),
        ],
        product(NAMES, SHAPES),
    ),
)
def test_scales_are_the_deviations_over_random_subsets(make_shard, name, shape):
    """Mean and deviation within the error of both estimates, with skewed quality."""
    rows, width, size = shape
    features, quality = make_shard(rows, width, rows + size)
    quality = np.exp(quality)
    objective = Span() if name == "span" else load_objective(name)
    found = spread_of(objective, features, quality, size)
    values = drawn(name, features, quality, 5000, size)
    error = np.square(values - values.mean()).std() / 5000**0.5 / 2 / values.var()
    tolerance = 4 * (error**2 + scales.PRECISION**2) ** 0.5
    assert found.deviation == pytest.approx(values.std(ddof=1), rel=tolerance)
    assert abs(found.mean - values.mean()) < 0.12 * values.std()
    if name == "quality":
        exact = quality.std(ddof=1) * (1 / size - 1 / rows) ** 0.5
        assert found.deviation == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("is_given", [True, False])
@pytest.mark.parametrize("name", ["quality", "pairwise", "disf"])
def test_a_sample_stands_for_the_corpus(make_shard, monkeypatch, name, is_given):
    """Moments of all documents and a third of them, given or drawn; the same spread."""
    features, quality = make_shard(3000, 12, 5)
    monkeypatch.setattr(scales, "MOST_DOCUMENTS", 1000)
    sample = np.sort(np.random.default_rng(0).choice(3000, 1000, replace=False))
    sample = sample if is_given else None
    found = spread_of(load_objective(name), features, quality, 300, sample)
    values = drawn(name, features, quality, 3000, 300)
    assert found.deviation == pytest.approx(values.std(ddof=1), rel=0.1)  # the sample's own error
    assert abs(found.mean - values.mean()) < 0.15 * values.std()
