"""Methods that only the comparators' table has, each against a naive re-derivation."""

import itertools

import numpy as np
import pytest
from sklearn.decomposition import PCA

from benchmarks.methods import capped_probabilities, chosen, density, gist, odis, spokes
from tests.baselines.test_baselines import clustered


@pytest.mark.parametrize("seed", range(10))
def test_gist_reaches_half_of_the_best(seed):
    """The paper's guarantee, by enumeration of all subsets of three."""
    features = clustered(12, dimension=4, seed=seed)
    quality = np.sort(np.random.default_rng(seed).random(12))[::-1]
    distance = np.sqrt(np.maximum(2 - 2 * features @ features.T, 0))
    unit, largest = float(np.std(quality)), float(distance[0].max())

    def value(rows: tuple[int, ...]) -> float:
        least = min(distance[a, b] for a, b in itertools.combinations(rows, 2))
        return 0.5 * float(quality[list(rows)].mean()) / unit + 0.5 * float(least) / largest

    found = tuple(np.argsort(-gist(features, quality, 3, 0.5), kind="stable")[:3])
    assert value(found) >= 0.5 * max(map(value, itertools.combinations(range(12), 3)))


def test_density_is_the_mean_of_the_nearest():
    """Against sorting all cosines."""
    features = clustered(40)
    cosines = features.astype(np.float64) @ features.T
    np.fill_diagonal(cosines, -np.inf)
    expected = np.sort(cosines, axis=1)[:, -10:].mean(axis=1)
    assert np.allclose(density(features), expected, atol=1e-5)
    mask = chosen("quality_minus_density", features, np.arange(40.0), 5, 0.0, {})
    assert set(np.flatnonzero(mask)) == set(np.argsort(expected)[:5])


@pytest.mark.parametrize(("weight", "count"), [(0.0, 12), (0.5, 12), (0.0, 1)])
def test_spokes_raises_the_entropy_of_the_mixture(weight, count):
    """With lambda 0, above all of 1,000 random selections; with quality, quality rises too."""
    features = clustered(120, dimension=6)
    quality = np.random.default_rng(2).standard_normal(120)

    def entropy(probabilities: np.ndarray) -> float:
        values = np.linalg.eigvalsh((features.T.astype(np.float64) * probabilities) @ features)
        values = values[values > 1e-12]
        return float(-(values * np.log(values)).sum())

    found = capped_probabilities(spokes(features, quality, count, weight), count)
    assert found.sum() == pytest.approx(1) and found.max() <= 1 / count + 1e-12
    even = np.full(120, 1 / 120)
    if weight:
        assert found @ quality > even @ quality + 0.5
    else:
        random = np.random.default_rng(3)
        others = [random.permutation(120)[: max(count, 6)] for _ in range(1000)]
        best = max(entropy(np.isin(np.arange(120), rows) / len(rows)) for rows in others)
        assert entropy(found) > max(best, entropy(even))


def test_capped_probabilities_are_those_of_a_bisection():
    """The factor by which they add up to 1, found by halving an interval."""
    ranked = np.random.default_rng(0).standard_normal(50) * 3
    for count in (1, 5, 20, 49, 50):
        low, high = -50.0, 50.0
        for _ in range(200):
            middle = (low + high) / 2
            total = np.minimum(np.exp(ranked + middle), 1 / count).sum()
            low, high = (middle, high) if total < 1 else (low, middle)
        expected = np.minimum(np.exp(ranked + high), 1 / count)
        np.testing.assert_allclose(capped_probabilities(ranked, count), expected, atol=1e-9)


def test_odis_takes_the_best_of_each_orthogonal_axis_in_turn():
    """Against scikit-learn's principal components; a missing value is the mean."""
    random = np.random.default_rng(1)
    common = random.standard_normal(60)
    scores = {
        "first": common + 0.1 * random.standard_normal(60),
        "second": common + 0.1 * random.standard_normal(60),
        "third": random.standard_normal(60),
        "constant": np.ones(60),
    }
    scores["third"][7] = np.nan
    quality = common + scores["third"].copy()
    quality[7] = common[7]
    table = np.stack([scores[name] for name in ("first", "second", "third")], 1)
    table[7, 2] = np.nanmean(table[:, 2])
    along = PCA().fit_transform((table - table.mean(0)) / table.std(0))
    along *= np.sign((quality - quality.mean()) @ along)
    found = set(np.flatnonzero(chosen("odis", np.zeros((60, 2)), quality, 9, 0.0, scores)))
    orders = [np.argsort(-along[:, axis]).tolist() for axis in range(3)]
    assert set(np.concatenate([order[:3] for order in orders])) <= found
    with pytest.raises(ValueError, match="two scores"):
        odis({"first": common}, quality)
    alone = odis(
        {"first": common, "constant": np.full(60, 0.1), "none": np.full(60, np.nan)}, common
    )
    assert np.argsort(-alone).tolist() == np.argsort(-common).tolist(), "a shard of one score"
    same = odis({"constant": np.ones(60), "none": np.full(60, np.nan)}, quality)
    assert (same == quality).all()
