"""Comparators: each against a naive re-derivation on shards small enough for one."""

from dataclasses import replace

import numpy as np
import pytest

from datamask.baselines import select
from datamask.baselines.clustered import clusters_of, d4, semdedup
from datamask.config.selection import METRICS, Selection
from datamask.config.settings import Settings
from datamask.learning.learner import learn_mask
from datamask.objectives.protocol import MomentObjective
from datamask.objectives.weighted import WeightedObjective, WeightedTerm, build_terms
from datamask.planning.preflight_schema import objective_problems


def clustered(rows: int, seed: int = 0, dimension: int = 16) -> np.ndarray:
    """Unit vectors around eight centres."""
    generator = np.random.default_rng(seed)
    centres = generator.standard_normal((8, dimension))
    vectors = centres[generator.integers(0, 8, rows)] + generator.standard_normal((rows, dimension))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def chosen(method: str, features: np.ndarray, count: int, seed: int = 0, **more: object) -> list:
    """Rows a method chooses, in order, without a quality term."""
    selection = Selection.model_validate({"quality_weight": 0, "method": method, **more})
    quality = np.zeros(len(features))
    logits = select(features, quality, count, selection, build_terms(selection), seed=seed)
    assert logits.dtype == np.float32
    assert len(set(logits.tolist())) == len(features)
    return np.argsort(-logits)[:count].tolist()


def disf_of_shard(rows: np.ndarray, whole: np.ndarray) -> float:
    """DiSF with mean and deviations of the shard."""
    if len(rows) < 2:
        return 0.0
    standard = (rows - whole.mean(0)) / (whole.std(0, ddof=1) + 1e-8)
    correlation = standard.T @ standard / (len(rows) - 1)
    return float(((correlation**2).sum() - (np.diag(correlation) ** 2).sum()) / 10_000)


def mean_cosine(rows: np.ndarray) -> float:
    """Of two different rows."""
    if len(rows) < 2:
        return 0.0
    cosines = rows @ rows.T
    return float(cosines[~np.eye(len(rows), dtype=bool)].mean())


def test_greedy_pursues_the_objective():
    """Each step against the objective of every candidate by definition, with weights, scales."""
    for seed, metric in enumerate(["pairwise", "disf"] * 4):
        random = np.random.default_rng(seed)
        features = clustered(40, seed)
        wide = features.astype(np.float64)
        quality = random.standard_normal(40)
        weights, scales = random.uniform(0.1, 1, 2), random.uniform(0.01, 2, 2)
        selection = Selection.model_validate({"method": "greedy", "metric": metric})
        terms = [
            WeightedTerm(term.objective, weight, scale)
            for term, weight, scale in zip(build_terms(selection), weights, scales, strict=True)
        ]
        logits = select(features, quality, 9, selection, terms, seed=0)
        found = np.argsort(-logits)[:9].tolist()

        for step in range(9):
            left = [row for row in range(40) if row not in found[:step]]
            linear_gain = {}
            for row in left:
                rows = [*found[:step], row]
                diversity = mean_cosine(wide[rows])
                if metric == "disf":
                    diversity = disf_of_shard(wide[rows], wide)
                raw = [quality[rows].mean(), -diversity]
                linear_gain[row] = raw @ (weights / scales)
            assert linear_gain[found[step]] >= max(linear_gain.values()) - 1e-5


@pytest.mark.parametrize("weight", [0.0, 0.3, 0.8])
def test_lazy_greedy_is_greedy(weight):
    """Each step against the objective of every candidate; laziness changes nothing."""
    for seed in range(5):
        features, random = clustered(60, seed), np.random.default_rng(seed)
        quality = random.standard_normal(60)
        selection = Selection(
            method="lazy_greedy", metric="facility_location", quality_weight=weight
        )
        terms = [
            replace(term, scale=scale)
            for term, scale in zip(build_terms(selection), (0.3, 0.02), strict=True)
        ]
        logits = select(features, quality, 12, selection, terms, seed=0)
        found = np.argsort(-logits)[:12].tolist()
        similarity = features.astype(np.float64) @ features.T
        for step in range(12):
            left = [row for row in range(60) if row not in found[:step]]
            linear_gain = {
                row: weight / 0.3 * quality[[*found[:step], row]].sum() / 12
                + (1 - weight) / 0.02 * similarity[[*found[:step], row]].max(axis=0).mean()
                for row in left
            }
            assert linear_gain[found[step]] >= max(linear_gain.values()) - 1e-5


def test_lazy_greedy_covers_all_documents():
    """More documents than the term samples: each step against the coverage of all of them."""
    features = clustered(2300, dimension=6)
    found = chosen("lazy_greedy", features, 3, metric="facility_location")
    similarity = features @ features.T
    covered = np.full(2300, -1.0, np.float32)
    for row in found:
        gains = np.maximum(similarity - covered, 0).mean(axis=1, dtype=np.float64)
        assert gains[row] >= gains.max() - 1e-6
        covered = np.maximum(covered, similarity[row])


def test_planted_copies_are_dropped():
    """Of each document and its near copy, one is kept."""
    features = clustered(100, dimension=64)
    noise = np.random.default_rng(1).standard_normal(features.shape) * 1e-3
    copies = features + noise.astype(np.float32)
    copies /= np.linalg.norm(copies, axis=1, keepdims=True)
    found = chosen("semdedup", np.concatenate([features, copies]), 100)
    assert len({row % 100 for row in found}) >= 98


def test_cluster_balanced_takes_as_many_of_every_cluster():
    """Sixty of three clusters of different sizes: twenty of each, its first by quality."""
    features = clustered(300)
    rows = chosen("cluster_balanced", features, 60)
    labels, _ = clusters_of(features, 60, 0)
    for cluster in range(3):
        members = np.flatnonzero(labels == cluster)
        assert sorted(set(rows) & set(members)) == members[:20].tolist()


def test_d4_drops_copies_first_and_prototypes_next():
    """Against its definition: no near-copy, and of the rest those farthest from their centroid."""
    features = clustered(400, dimension=16)
    ranked = d4(features, 40, 0)
    kept = np.flatnonzero(ranked > -1)
    assert len(kept) == 300
    repeats = semdedup(features, 40, 0)
    assert repeats[kept].min() >= np.delete(repeats, kept).max()
    labels, centroids = clusters_of(features[kept], 40, 0)
    assert len(centroids) == 3
    for row, label in zip(kept, labels, strict=True):
        cosine = features[row] @ centroids[label] / np.linalg.norm(centroids[label])
        assert ranked[row] == pytest.approx(1 - cosine, abs=1e-5)


def test_ties_fall_to_quality_then_id():
    """Equal qualities are ordered by the whole id, not by row; a NUL at its end counts."""
    features, quality = clustered(4), np.array([1.0, 2.0, 1.0, 1.0])
    for ids, expected in (
        (["d", "c", "a", "b"], [1, 2, 3, 0]),
        (["a\0", "c", "a", "b"], [1, 2, 0, 3]),
    ):
        selection = Selection(method="top_quality")
        id_order = np.array([sorted(ids).index(one) for one in ids])
        logits = select(features, quality, 2, selection, [], seed=0, id_order=id_order)
        assert np.argsort(-logits).tolist() == expected
        learned = learn_mask(
            np.eye(2, dtype=np.float32)[[0] * 4], np.ones(4), Selection(steps=0), 1, seed=0, ids=ids
        )
        assert [ids[row] for row in np.flatnonzero(learned.selected)] == [min(ids)]


@pytest.mark.parametrize(
    ("selection", "problem"),
    [
        ({"method": "greedy", "metric": "facility_location"}, "greedy does not serve facility"),
        ({"method": "lazy_greedy", "metric": "disf"}, "lazy_greedy does not serve disf"),
        (
            {
                "method": "lazy_greedy",
                "metric": "facility_location",
                "more_terms": [{"name": "disf", "weight": 0.1}],
            },
            "selection.more_terms: lazy_greedy has no further terms",
        ),
        (
            {"method": "greedy", "more_terms": [{"name": "pairwise", "weight": 1}]},
            "selection.more_terms: greedy has no further terms",
        ),
    ],
)
def test_terms_that_a_method_would_ignore_are_refused(selection, problem):
    """At planning, in one line that says what serves them."""
    settings = Settings.model_validate({"selection": selection})
    (error,) = objective_problems(settings)
    assert problem in str(error)
    del selection["method"]
    assert not list(objective_problems(Settings.model_validate({"selection": selection})))


@pytest.mark.parametrize("estimator", ["auto", "expected"])
@pytest.mark.parametrize("scope", ["shard", "corpus"])
@pytest.mark.parametrize("metric", METRICS)
def test_a_metric_alone_is_refused_where_its_class_does_not_suit(metric, scope, estimator):
    """Planning knows so without making the metric."""
    data = {"selection": {"metric": metric, "scope": scope, "estimator": estimator}}
    settings = Settings.model_validate(data)
    terms = build_terms(settings.selection)
    has_sums = all(isinstance(term.objective, MomentObjective) for term in terms)
    assert WeightedObjective(terms).has_expectation
    assert len([*objective_problems(settings)]) == (scope == "corpus" and not has_sums)
