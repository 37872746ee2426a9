"""Arrange documents on a map by t-SNE.

All pairs of documents repel each other, and each document attracts its nearest ones, all equally
strongly. Some thousand documents take a second; scikit-learn's t-SNE takes longer to import.
"""

from __future__ import annotations

import numpy as np

NEIGHBOURS, EARLY, ITERATIONS, EXAGGERATION = 15, 100, 250, 12.0
"""Number of nearest documents that attract a document, of iterations in which they attract it more
strongly, of all iterations, and that factor (docs/log.md#report)."""
RATE, MOMENTUM, LATE_MOMENTUM, LEAST_GAIN = 50.0, 0.5, 0.8, 0.01
"""Of the descent: the least learning rate, the momentum in early and in late iterations, and the
least factor of a coordinate's learning rate (docs/log.md#report)."""
ROWS = 64
"""Number of documents whose repulsion is computed together: their pairs stay in the cache."""


def embedding_map(features: np.ndarray, seed: int) -> np.ndarray:
    """Compute t-SNE of some documents, deterministic on one machine.

    Args:
        features: float32, n x D, unit rows.
        seed: of the search for the two principal components at which documents start.

    Returns:
        float32, n x 2, in units of the map's standard deviation; three decimals.
    """
    from threadpoolctl import threadpool_limits

    if len(features) < 4 or not np.ptp(features, axis=0).any():
        return np.zeros((len(features), 2), dtype=np.float32)
    # Sums over threads differ in their last digits, and t-SNE amplifies the difference.
    with threadpool_limits(1):
        points = _arrange(_principal_components(features, seed), *_attractions(features))
    return np.round(points / (points.std() or 1.0), 3).astype(np.float32)


def _principal_components(features: np.ndarray, seed: int) -> np.ndarray:
    """Return each document's place on the two axes of largest variance, n x 2, nearly."""
    centred = features - features.mean(0)
    axes = np.random.default_rng(seed).standard_normal((features.shape[1], 2), np.float32)
    for _ in range(10):
        axes = np.linalg.qr(centred.T @ (centred @ axes))[0]
    places = np.zeros((len(features), 2), np.float32)
    places[:, : axes.shape[1]] = centred @ axes
    return places


def _attractions(features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs that attract each other, in both directions, sorted by the first document."""
    count = len(features)
    near = min(NEIGHBOURS, count - 1)
    found = np.empty((count, near), np.int64)
    for start in range(0, count, ROWS):
        cosines = features[start : start + ROWS] @ features.T
        cosines[np.arange(len(cosines)), np.arange(start, start + len(cosines))] = -np.inf
        found[start : start + ROWS] = np.argpartition(-cosines, near - 1)[:, :near]
    first, second = np.repeat(np.arange(count), near), found.ravel()
    both = np.append(first, second), np.append(second, first)
    order = np.argsort(both[0], kind="stable")
    return both[0][order], both[1][order]


def _arrange(start: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Descend the gradient from *start*, n x 2, by the pairs that attract each other."""
    points = (1e-4 * start / start.std()).astype(np.float32)
    speed, gains = np.zeros_like(points), np.ones_like(points)
    bounds = np.searchsorted(first, np.arange(len(points)))
    rate = max(len(points) / EXAGGERATION / 4, RATE)
    for iteration in range(ITERATIONS):
        is_early = iteration < EARLY
        places = points.view(np.complex64)[:, 0]
        apart = places[second] - places[first]
        # The similarity of a pair on the map is 1 / (1 + distance²).
        apart /= 1 + apart.real**2 + apart.imag**2
        pull = np.add.reduceat(apart, bounds).view(np.float32).reshape(-1, 2) / len(first)
        gradient = -4 * ((EXAGGERATION if is_early else 1) * pull + _repulsion(points))
        gains = np.where(speed * gradient < 0, gains + 0.2, gains * 0.8)
        gains = np.maximum(gains, LEAST_GAIN)
        speed = (MOMENTUM if is_early else LATE_MOMENTUM) * speed - rate * gains * gradient
        points = points + speed
    return points


def _repulsion(points: np.ndarray) -> np.ndarray:
    """Add up, for each point, the force away from every other point; n x 2."""
    ones, squares = np.ones((len(points), 1), np.float32), (points**2).sum(1, keepdims=True)
    # Their product is 1 + distance² of all pairs.
    left, right = np.hstack([-2 * points, squares + 1, ones]), np.hstack([points, ones, squares]).T
    summed, sums = np.hstack([ones, points]), np.empty((len(points), 3), np.float32)
    totals = np.empty_like(ones)
    similar = np.empty((ROWS, len(points)), np.float32)
    for start in range(0, len(points), ROWS):
        block = similar[: len(points) - start]
        np.reciprocal(np.matmul(left[start : start + ROWS], right, out=block), out=block)
        np.matmul(block, ones, out=totals[start : start + ROWS])
        np.matmul(np.square(block, out=block), summed, out=sums[start : start + ROWS])
    others = totals.sum(dtype=np.float64) - len(points)  # A point's similarity to itself is 1.
    forces: np.ndarray = (sums[:, :1] * points - sums[:, 1:]) / np.float32(others)
    return forces
