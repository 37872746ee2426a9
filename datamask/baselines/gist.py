"""GIST: max-min diversity with a utility (arXiv 2405.18754, algorithm 1).

For each of a decreasing series of distances, a greedy pass in order of quality takes every document
that is at least this far from all documents taken so far. The result is the set with the highest
weighted sum of mean quality (in standard deviations) and distance (as a share of the largest). The
other documents follow in order of quality.
"""

from __future__ import annotations

import numpy as np

STEP = 0.25
"""Successive distances have the ratio 1 + STEP; the ε of the paper's guarantee (1/2 − ε). See
docs/log.md#comparators."""
LEAST_DISTANCE = 0.05
"""The smallest distance to try, as a share of the largest (docs/log.md#comparators)."""


def independent_set(features: np.ndarray, distance: float, most: int) -> np.ndarray:
    """Rows of a greedy set of at most *most* documents, *distance* apart or more; int64, sorted."""
    free = np.ones(len(features), dtype=bool)
    taken: list[int] = []
    closest = 1.0 - distance**2 / 2  # cosine of unit vectors at this distance
    for row in range(len(features)):
        if not free[row]:
            continue
        taken.append(row)
        if len(taken) == most:
            break
        free[row:] &= features[row:] @ features[row] < closest + 1e-6
    return np.asarray(taken, dtype=np.int64)


def gist(
    features: np.ndarray, quality: np.ndarray, num_selected: int, quality_weight: float
) -> np.ndarray:
    """Rank the documents of the best set first, these and then the others by quality.

    Mean quality has the weight lambda, *quality_weight*, and distance the rest.
    """
    if not num_selected:
        return quality
    largest = float(np.sqrt(np.maximum(2 - 2 * (features @ features[0]), 0)).max()) or 1.0
    deviation = float(np.std(quality)) or 1.0
    best, chosen = -np.inf, np.arange(min(num_selected, len(features)))
    distance = largest
    while distance >= LEAST_DISTANCE * largest:
        rows = independent_set(features, distance, num_selected)
        if len(rows) == min(num_selected, len(features)):
            utility = float(quality[rows].mean()) / deviation
            value = quality_weight * utility + (1 - quality_weight) * distance / largest
            if value > best:
                best, chosen = value, rows
        distance /= 1 + STEP
    ranked = -np.arange(len(features), dtype=np.float64)
    ranked[chosen] += len(features)
    return ranked
