"""The range of terms, against the definition: brute force, sorting, and random subsets by numpy."""

from itertools import combinations, product

import numpy as np
import pytest
import torch

from datamask.config.compute import Compute
from datamask.config.selection import Selection
from datamask.learning import scales
from datamask.learning.data import highest_order, moments_of, raw_values
from datamask.learning.learner import learn_mask, shard_data
from datamask.objectives.facility_location import FacilityLocation
from datamask.objectives.weighted import WeightedTerm, load_objective
from tests.conftest import mostly_nightly

METRICS = ["quality", "pairwise", "disf", "facility_location"]
NAMES = [*METRICS, "span"]


class Span:
    """Range of quality among the selected: a custom objective that does not read moments."""

    name = "span"
    maximise = True

    def values(self, masks_GB, batch):
        """Largest less least."""
        masked = torch.where(masks_GB, batch.quality_B, torch.nan)
        return masked.nan_to_num(-1e9).amax(1) - masked.nan_to_num(1e9).amin(1)


def by_definition(name, features, quality, rows):
    """A term's raw value for some rows."""
    rows = np.asarray(rows)
    if name == "quality":
        return quality[rows].mean()
    if name == "span":
        return quality[rows].max() - quality[rows].min()
    chosen = features[rows].astype(np.float64)
    if name == "pairwise":
        return (np.square(chosen.sum(0)).sum() - len(rows)) / (len(rows) * (len(rows) - 1))
    if name == "facility_location":
        return (features.astype(np.float64) @ chosen.T).max(1).mean()
    correlation = np.corrcoef(chosen.T)
    return (np.square(correlation).sum() - len(correlation)) / 10_000


def drawn(name, features, quality, count, size):
    """Values of that many random subsets."""
    random = np.random.default_rng(7)
    subsets = (random.choice(len(quality), size, replace=False) for _ in range(count))
    return np.array([by_definition(name, features, quality, rows) for rows in subsets])


def reference_of(objective, features, quality, size, sample=None):
    """Return the library's values; *sample*: rows that stand for all documents."""
    data = shard_data(features, quality, {}, Compute(device="cpu"))
    terms = [WeightedTerm(objective, 1.0)]
    totals = moments_of(data, torch.ones(data.num_documents), max(highest_order(terms), 0))
    if sample is not None:
        data = shard_data(features[sample], quality[sample], {}, Compute(device="cpu"))
    return scales.references(terms, totals, data, size, 3)[objective.name]


def made(name):
    """An objective by name."""
    return Span() if name == "span" else load_objective(name)


@pytest.mark.parametrize(
    ("name", "seed"), mostly_nightly([(name, 0) for name in NAMES], product(NAMES, range(3)))
)
def test_the_best_selection_is_that_of_brute_force(make_shard, name, seed):
    """Of all 495 subsets of a tiny shard, within a tenth of the range; no better one exists."""
    features, quality = make_shard(12, 4, seed)
    known = reference_of(made(name), features, quality, 4)
    values = [by_definition(name, features, quality, rows) for rows in combinations(range(12), 4)]
    sign = 1 if made(name).maximise else -1
    most = sign * max(sign * value for value in values)
    # The mean of 32 random subsets, within three of its standard errors.
    assert known.random == pytest.approx(np.mean(values), abs=0.55 * np.std(values))
    least = 0.9 * abs(most - np.mean(values))
    assert least <= sign * (known.best - np.mean(values)) + 0.55 * np.std(values)
    assert sign * known.best <= sign * most + 0.55 * np.std(values)


@pytest.mark.parametrize("name", NAMES)
def test_random_selections_have_their_mean_value(make_shard, name):
    """Against 2,000 subsets drawn by numpy; skewed quality, fewer documents than dimensions."""
    features, quality = make_shard(400, 24, 7)
    quality = np.exp(quality)
    known = reference_of(made(name), features, quality, 12)
    values = drawn(name, features, quality, 2000, 12)
    assert abs(known.random - values.mean()) < 0.6 * values.std()
    assert known.range > 2 * values.std()


@pytest.mark.parametrize("name", ["quality", "pairwise", "disf"])
def test_a_sample_stands_for_the_corpus(name):
    """Moments of all documents and a third of them: nearly the same random and best selections."""
    features, quality = clusters(3000)
    sample = np.sort(np.random.default_rng(0).choice(3000, 1000, replace=False))
    whole = reference_of(load_objective(name), features, quality, 1500)
    part = reference_of(load_objective(name), features, quality, 1500, sample)
    assert part.random == pytest.approx(whole.random, abs=0.1 * whole.range)
    assert part.range == pytest.approx(whole.range, rel=0.25)  # a third of the documents


@pytest.mark.parametrize("clustered", [False, True])
def test_a_range_of_a_sample_is_that_of_all_documents(clustered, monkeypatch):
    """DiSF learned from half: where nothing is clustered, this half gains twice as much."""
    features, quality = clusters(8000)
    if not clustered:
        features = np.random.default_rng(4).standard_normal((8000, 24)).astype(np.float32)
    exact = reference_of(load_objective("disf"), features, quality, 800)
    monkeypatch.setattr(scales, "SAMPLE", 4000)
    sampled = reference_of(load_objective("disf"), features, quality, 800)
    assert sampled.random == exact.random
    assert sampled.range == pytest.approx(exact.range, rel=0.1)


def test_terms_that_cannot_differ_have_no_range(make_shard):
    """All documents alike, all selected or none selected: the range is 0 and no term is scaled."""
    features, _ = make_shard(60, 6, 1)
    for name in METRICS:
        alike = np.repeat(features[:1], 60, 0), np.ones(60)
        assert reference_of(load_objective(name), *alike, 6).range == pytest.approx(0, abs=1e-6)
        for size in (0, 60):
            known = reference_of(load_objective(name), features, np.arange(60.0), size)
            assert known.range == 0


def clusters(number):
    """Documents of 300 clusters by a power law, and a score that goes with the cluster."""
    random = np.random.default_rng(3)
    centres = random.standard_normal((300, 64))
    weight = 1 / np.arange(1, 301)
    label = random.choice(300, number, p=weight / weight.sum())
    features = centres[label] + 1.2 * random.standard_normal((number, 64))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    quality = random.standard_normal(number) + random.standard_normal(300)[label]
    return features.astype(np.float32), quality


def shares(metric, features, quality, weight):
    """Quality and diversity of a tenth, over all documents, as shares of the best gains."""
    size = len(quality) // 10
    compute = Compute(device="cpu")

    def learned(weight):
        selection = Selection(metric=metric, quality_weight=weight)
        return learn_mask(features, quality, selection, size, seed=1, compute=compute).selected

    data = shard_data(features, quality, {}, compute)
    objective = FacilityLocation(len(quality)) if metric == "facility_location" else made(metric)
    masks = [learned(weight), learned(0.0)]
    random = np.random.default_rng(9)
    for _ in range(3):
        masks.append(np.isin(np.arange(len(quality)), random.permutation(len(quality))[:size]))
    ours, best, *others = (
        raw_values([WeightedTerm(objective, 1.0)], data, torch.from_numpy(mask))[metric]
        for mask in masks
    )
    quality = quality - quality.mean()
    return (
        quality[masks[0]].mean() / np.sort(quality)[-size:].mean(),
        (ours - np.mean(others)) / (best - np.mean(others)),
    )


@pytest.mark.parametrize(
    ("metric", "number"),
    mostly_nightly(
        [("facility_location", 12_000)],
        product(("facility_location", "disf", "pairwise"), [24_000]),
    ),
)
def test_lambda_means_the_same_at_every_size(metric, number):
    """One distribution with 4,000 and many more documents gives the same shares of the gains."""
    features, quality = clusters(number)
    small, large = (shares(metric, features[:size], quality[:size], 0.3) for size in (4000, number))
    assert small == pytest.approx(large, abs=0.1)
    assert 0.2 < large[0] < 0.9 and 0.6 < large[1] <= 1.02
