"""Methods of selection that the comparators' table measures beside those of datamask.

- `quality_minus_density`: if a mask only avoids crowded regions, a density estimate should do as
  well, as a reviewer of the paper said. Density is the mean cosine to the nearest neighbours.
- `gist`: max-min diversity with a utility (GIST, arXiv 2405.18754, algorithm 1). For each of a
  decreasing series of distances, a greedy pass in order of quality takes every document that is at
  least this far from all taken so far. The result is the set with the highest weighted sum of mean
  quality (in deviations) and distance (as a share of the largest).
- `spokes`: sampling probabilities of the most diverse mixture, with quality (after SPOKES, arXiv
  2606.15216): exponentiated gradient ascent on the entropy of the eigenvalues of Σ pᵢ xᵢ xᵢᵀ. Each
  step multiplies pᵢ by exp((1 − λ) gᵢ + λ zᵢ), gᵢ = −xᵢᵀ log(Σ p x xᵀ) xᵢ, zᵢ the quality in
  deviations. Differences from the paper: vectors are embeddings, not gradients of a model, and no
  document has more than the share 1/S, so the S most probable documents are the selection.
- `odis`: the best documents along each of the orthogonal axes of several scores (after ODiS, arXiv
  2510.18909). The paper fits a model to each axis; here the axes are of the scores themselves.

Documents come in the order of falling quality: features N x D, float32, unit rows. Methods return
values by which these rank (float64, shape N), the first of equal values first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch

from datamask.objectives.products import cosines

# See docs/log.md#comparators, also for the others.
NEIGHBOURS = 10
ROWS_AT_ONCE = 512
STEP = 0.25
"""Successive distances have the ratio 1 + STEP; the ε of the paper's guarantee (1/2 − ε)."""
LEAST_DISTANCE = 0.05
"""The smallest distance to try, as a share of the largest."""
STEPS = 30
"""Steps of ascent."""
FLOOR = 1e-6
"""The least eigenvalue of which a logarithm is taken."""


def chosen(
    name: str,
    features: np.ndarray,
    quality: np.ndarray,
    count: int,
    quality_weight: float,
    scores: Mapping[str, np.ndarray],
) -> np.ndarray:
    """The mask of a method of `METHODS`, or of `odis` by *scores*; bool, shape N."""
    order = np.argsort(-quality, kind="stable")
    ranking = np.asarray(quality, np.float64)[order]
    if name == "odis":
        ranked = odis({key: values[order] for key, values in scores.items()}, ranking)
    else:
        given = features[order].astype(np.float32)
        ranked = METHODS[name](given, ranking, count, quality_weight)
    mask = np.zeros(len(order), bool)
    mask[order[np.argsort(-ranked, kind="stable")[:count]]] = True
    return mask


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


def spokes(
    features: np.ndarray, quality: np.ndarray, num_selected: int, quality_weight: float
) -> np.ndarray:
    """The logarithm of each document's probability before its cap; float64, shape N."""
    if not 0 < num_selected < len(features):
        return quality
    vectors = torch.from_numpy(features)
    deviation = float(np.std(quality)) or 1.0
    better = (quality - quality.mean()) / deviation
    ranked = np.zeros(len(features))
    for _ in range(STEPS):
        capped = capped_probabilities(ranked, num_selected)
        weighted = vectors * torch.from_numpy(capped.astype(np.float32))[:, None]
        values, directions = torch.linalg.eigh((vectors.T @ weighted).double())
        logarithm = (directions * values.clamp(min=FLOOR).log()) @ directions.T
        gradient = -(vectors @ logarithm.float() * vectors).sum(1).double().numpy()
        ranked = np.log(capped) + (1 - quality_weight) * gradient + quality_weight * better
    return ranked


def capped_probabilities(ranked: np.ndarray, num_selected: int) -> np.ndarray:
    """min(c · exp(ranked), 1/S), with the c for which they add up to 1; shape N."""
    weights = np.exp(ranked - ranked.max())
    order = np.argsort(-weights, kind="stable")
    rest = np.cumsum(weights[order][::-1])[::-1]
    # The k largest have the cap, for the first k that leaves the next one below it.
    left = 1 - np.arange(len(weights)) / num_selected
    full = int(np.argmax(weights[order] * left <= rest / num_selected * (1 + 1e-12)))
    capped = np.full(len(weights), 1 / num_selected)
    capped[order[full:]] = weights[order[full:]] * left[full] / rest[full]
    return capped


def odis(scores: Mapping[str, np.ndarray], quality: np.ndarray) -> np.ndarray:
    """Minus the rank of each document on the axis that ranks it highest; float64, shape N.

    A missing score counts as the mean, and a score that is the same for all documents counts for
    nothing. Each axis points to where *quality* rises.

    Raises:
        ValueError: there are fewer than two scores.
    """
    if len(scores) < 2:
        raise ValueError("odis needs two scores or more")
    columns = np.ma.masked_invalid(np.stack([*scores.values()], 1).astype(np.float64))
    centred = (columns - columns.mean(0)).filled(0.0)
    varied = centred[:, np.ma.filled(np.ma.ptp(columns, 0), 0.0) > 0]
    number = varied.shape[1]
    if not number:
        return np.asarray(quality, np.float64)
    table = varied / varied.std(0)
    _, axes = np.linalg.eigh(table.T @ table)
    along = table @ axes
    along *= np.where((quality - quality.mean()) @ along < 0, -1, 1)
    ranks = np.argsort(np.argsort(-along, axis=0, kind="stable"), axis=0, kind="stable")
    # Axes take turns, that of the largest variance first.
    turns = (ranks * number + np.arange(number)[::-1]).min(axis=1)
    result: np.ndarray = -turns.astype(np.float64)
    return result


METHODS: Mapping[str, Callable[[np.ndarray, np.ndarray, int, float], np.ndarray]] = {
    "quality_minus_density": quality_minus_density,
    "gist": gist,
    "spokes": spokes,
}
