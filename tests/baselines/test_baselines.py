"""Comparators: each against a naive re-derivation on shards small enough for one."""

from __future__ import annotations

import numpy as np
import pytest

from datamask.baselines import select
from datamask.baselines.density import density
from datamask.config import Selection
from datamask.errors import SettingsError
from datamask.learning.learner import learn_mask


def clustered(rows: int, seed: int = 0, dimension: int = 16) -> np.ndarray:
    """Unit vectors around eight centres."""
    generator = np.random.default_rng(seed)
    centres = generator.standard_normal((8, dimension))
    vectors = centres[generator.integers(0, 8, rows)] + generator.standard_normal((rows, dimension))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def chosen(method: str, features: np.ndarray, count: int, seed: int = 0, **more: object) -> list:
    """Rows a method chooses, in order, without a quality term."""
    selection = Selection.model_validate({"quality_weight": 0, **more})
    quality = np.zeros(len(features))
    logits = select(method, features, quality, count, selection, seed=seed)
    assert logits.dtype == np.float32
    assert len(set(logits.tolist())) == len(features)
    return np.argsort(-logits)[:count].tolist()


def naive_facility_location(features: np.ndarray, count: int) -> list[int]:
    """Greedy by trying every document each time."""
    similarity = np.maximum(features @ features.T, 0)
    rows: list[int] = []
    for _ in range(count):
        values = [
            -1.0 if row in rows else similarity[[*rows, row]].max(axis=0).mean(dtype=np.float64)
            for row in range(len(features))
        ]
        rows.append(int(np.argmax(values)))
    return rows


def test_lazy_greedy_is_greedy() -> None:
    """Laziness saves work and changes nothing."""
    for seed in range(5):
        features = clustered(60, seed)
        found = chosen("lazy_greedy", features, 12, metric="facility_location")
        assert found == naive_facility_location(features, 12)


def test_stochastic_greedy_comes_near() -> None:
    """It covers nearly what greedy covers, and far more than random."""
    features = clustered(300)
    similarity = np.maximum(features @ features.T, 0)

    def covered(rows: list[int]) -> float:
        return float(similarity[rows].max(axis=0).mean())

    random = covered(chosen("random", features, 15))
    best = covered(chosen("lazy_greedy", features, 15, metric="facility_location"))
    found = covered(chosen("stochastic_greedy", features, 15, metric="facility_location"))
    assert random + 0.8 * (best - random) < found <= best + 1e-9


@pytest.mark.parametrize(("metric", "power"), [("pairwise", 1), ("disf", 2)])
def test_incremental_greedy_is_naive_greedy(metric: str, power: int) -> None:
    """The running sums give each step's least total similarity to those chosen."""
    features = clustered(50).astype(np.float64)
    found = chosen("greedy", features.astype(np.float32), 10, metric=metric)
    cosines = (features @ features.T) ** power
    for step in range(1, 10):
        cost = cosines[:, found[:step]].sum(axis=1)
        cost[found[:step]] = np.inf
        assert cost[found[step]] <= cost.min() + 1e-5


def test_semdedup_drops_planted_copies() -> None:
    """Of each document and its near copy, one is kept."""
    features = clustered(100, dimension=64)
    noise = np.random.default_rng(1).standard_normal(features.shape) * 1e-3
    copies = features + noise.astype(np.float32)
    copies /= np.linalg.norm(copies, axis=1, keepdims=True)
    found = chosen("semdedup", np.concatenate([features, copies]), 100)
    assert len({row % 100 for row in found}) >= 98


def test_density_is_the_mean_of_the_nearest() -> None:
    """Against sorting all cosines."""
    features = clustered(40)
    cosines = features.astype(np.float64) @ features.T
    np.fill_diagonal(cosines, -np.inf)
    expected = np.sort(cosines, axis=1)[:, -10:].mean(axis=1)
    assert np.allclose(density(features), expected, atol=1e-5)
    assert len(chosen("direct_logits", features, 5)) == 5


def test_ties_fall_to_quality_then_id() -> None:
    """Equal qualities are ordered by the whole id, not by row; a NUL at its end counts."""
    features, quality = clustered(4), np.array([1.0, 2.0, 1.0, 1.0])
    for ids, expected in (
        (["d", "c", "a", "b"], [1, 2, 3, 0]),
        (["a\0", "c", "a", "b"], [1, 2, 0, 3]),
    ):
        logits = select("top_quality", features, quality, 2, Selection(), seed=0, ids=ids)
        assert np.argsort(-logits).tolist() == expected
        learned = learn_mask(
            np.ones((4, 2), np.float32), np.ones(4), Selection(steps=0), 1, seed=0, ids=ids
        )
        assert [ids[row] for row in np.flatnonzero(learned.selected)] == [min(ids)]


def test_random_follows_the_seed() -> None:
    """The same seed chooses the same, another does not."""
    features = clustered(200)
    assert chosen("random", features, 20, seed=1) == chosen("random", features, 20, seed=1)
    assert chosen("random", features, 20, seed=1) != chosen("random", features, 20, seed=2)


def test_a_method_that_does_not_serve_the_metric_is_refused() -> None:
    """The error says which does."""
    with pytest.raises(SettingsError, match="lazy_greedy and stochastic_greedy serve"):
        chosen("greedy", clustered(10), 2, metric="facility_location")
