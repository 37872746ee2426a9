"""The bounds of benchmarks.bounds, against the best of all selections of a tiny corpus."""

import itertools

import numpy as np
import pytest

from benchmarks.bounds import Problem, concave_bound, covering_bound

ROWS, COUNT = 11, 4


def values(problem: Problem, metric: str, rows: np.ndarray) -> float:
    """The objective by its definition."""
    vectors = problem.vectors[rows].astype(np.float64)
    if metric == "facility_location":
        diverse = (problem.vectors.astype(np.float64) @ vectors.T).max(1).mean()
    else:
        cosines = vectors @ vectors.T
        diverse = -(cosines.sum() - np.trace(cosines)) / (COUNT * (COUNT - 1))
    return float(problem.weight * diverse + problem.linear[rows].sum())


@pytest.mark.parametrize("metric", ["facility_location", "pairwise"])
@pytest.mark.parametrize("quality_weight", [0.0, 0.4])
def test_no_selection_is_above_the_bound(metric, quality_weight):
    """All 330 selections are below; the value is the definition's; the bound is near the best."""
    for seed in range(5):
        random = np.random.default_rng(seed)
        vectors = random.normal(size=(ROWS, 3))
        vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
        linear = quality_weight * random.normal(size=ROWS) / COUNT
        problem = Problem(vectors, linear, 1 - quality_weight, COUNT)
        subsets = [np.array(rows) for rows in itertools.combinations(range(ROWS), COUNT)]
        exact = [values(problem, metric, rows) for rows in subsets]
        start = subsets[seed * 50]
        if metric == "facility_location":
            value, bound = covering_bound(problem, start)
        else:
            value, bound = concave_bound(problem, start, metric)
        assert value(start) == pytest.approx(exact[seed * 50], abs=1e-6)
        assert max(exact) <= bound + 1e-6
        assert bound - max(exact) < 0.5 * (max(exact) - np.mean(exact))
