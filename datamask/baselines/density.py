"""Method `quality_minus_density`: quality minus local density, without learning.

A reviewer of the paper asked for this comparison: if a mask only avoids crowded regions, a density
estimate should do as well. Density is the mean cosine to the nearest neighbours. Quality and
density are in units of their deviation over documents; the run's metric and scales are not used.
"""

from __future__ import annotations

import numpy as np

from datamask.objectives.products import cosines

# See docs/log.md#comparators.
NEIGHBOURS = 10
# See docs/log.md#memory.
ROWS_AT_ONCE = 512


def quality_minus_density(
    features: np.ndarray, quality: np.ndarray, _: int, quality_weight: float
) -> np.ndarray:
    """Lambda times quality minus (1 − lambda) times density; lambda is *quality_weight*."""
    return quality_weight * _standard(quality) - (1 - quality_weight) * _standard(density(features))


def density(features: np.ndarray) -> np.ndarray:
    """Mean cosine to the ten nearest other documents; float64, shape N."""
    count = min(NEIGHBOURS, max(len(features) - 1, 1))
    densities = np.zeros(len(features))
    for start in range(0, len(features), ROWS_AT_ONCE):
        similarity = cosines(features[start : start + ROWS_AT_ONCE], features)
        np.fill_diagonal(similarity[:, start:], -1)
        nearest = np.partition(similarity, -count, axis=1)[:, -count:]
        densities[start : start + ROWS_AT_ONCE] = nearest.mean(axis=1, dtype=np.float64)
    return densities


def _standard(values: np.ndarray) -> np.ndarray:
    deviation = float(np.std(values)) or 1.0
    return np.asarray((values - np.mean(values)) / deviation, dtype=np.float64)
