"""t-SNE: the map of the report's sample.

Attraction is that of t-SNE (van der Maaten and Hinton 2008), over nearest neighbours. Repulsion is
measured against some documents, drawn again in each iteration, as if all were like them. That is
several times as fast as a tree, and needs no scikit-learn, which takes seconds to import.
"""

from __future__ import annotations

import numpy as np

PRINCIPAL_COMPONENTS, PERPLEXITY, NEIGHBOURS = 50, 10, 30
"""Of t-SNE (docs/log.md#report)."""

ITERATIONS, EXAGGERATED, EXAGGERATION, DRAWN = 250, 100, 12.0, 60
"""Iterations, the first of them with stronger attraction, its factor, and documents drawn for the
repulsion (docs/log.md#report)."""

ROWS_AT_ONCE = 1024
"""Documents whose nearest are sought together (docs/log.md#memory)."""


def embedding_map(features: np.ndarray, seed: int) -> np.ndarray:
    """t-SNE of some documents, deterministic on one machine.

    Args:
        features: float32, n x D, unit rows.
        seed: of t-SNE.

    Returns:
        float32, n x 2, in units of the map's standard deviation; three decimals.
    """
    from threadpoolctl import threadpool_limits

    if len(features) < 4:
        return np.zeros((len(features), 2), dtype=np.float32)
    # Sums over threads differ in their last digits, and t-SNE amplifies the difference.
    with threadpool_limits(1):
        wide = features.astype(np.float64) - features.mean(0, dtype=np.float64)
        values, axes = np.linalg.eigh(wide.T @ wide)
        axes = axes[:, np.argsort(-values)][:, :PRINCIPAL_COMPONENTS]
        # Fix the sign of each axis, which the eigensolver does not determine.
        axes = axes * np.sign(axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])])
        reduced = (wide @ axes).astype(np.float32)
        deviation = float(reduced[:, 0].std())
        if not deviation:
            return np.zeros((len(features), 2), dtype=np.float32)
        near, weights = _neighbours(reduced)
        points = _descend(reduced[:, :2] / deviation * 1e-4, near, weights, seed)
    result: np.ndarray = np.round(points / (points.std() or 1.0), 3).astype(np.float32)
    return result


def _neighbours(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The nearest others of n points, n x K, and their weights, which add up to 1 over all."""
    number = min(NEIGHBOURS, len(points) - 1)
    lengths, near, far = np.square(points).sum(1), [], []
    for first in range(0, len(points), ROWS_AT_ONCE):
        rows = points[first : first + ROWS_AT_ONCE]
        distances = lengths - 2 * rows @ points.T + np.square(rows).sum(1)[:, None]
        distances[np.arange(len(rows)), first + np.arange(len(rows))] = np.inf
        near.append(np.argpartition(distances, number - 1, axis=1)[:, :number])
        far.append(np.take_along_axis(distances, near[-1], axis=1))
    far_NK = np.concatenate(far).astype(np.float64)
    far_NK -= far_NK.min(1, keepdims=True)
    # The precision of each point by bisection, so that its perplexity is the one that is due.
    low, high = np.full(len(points), -60.0), np.full(len(points), 60.0)  # of log2
    for _ in range(40):
        middle = (low + high) / 2
        chances = np.exp(-far_NK * np.exp2(middle)[:, None])
        chances /= chances.sum(1, keepdims=True)
        entropy = -np.sum(chances * np.log(np.maximum(chances, 1e-300)), axis=1)
        is_wide = entropy > np.log(min(PERPLEXITY, number / 3))
        low, high = np.where(is_wide, middle, low), np.where(is_wide, high, middle)
    return np.concatenate(near), (chances / len(points)).astype(np.float32)


def _descend(start: np.ndarray, near: np.ndarray, weights: np.ndarray, seed: int) -> np.ndarray:
    """Move points, n x 2, along the gradient of t-SNE."""
    points, speed, count = start.astype(np.float32), np.zeros_like(start), len(start)
    generator = np.random.Generator(np.random.PCG64(seed))
    flat = near.ravel()
    for iteration in range(ITERATIONS):
        is_early = iteration < EXAGGERATED
        apart = points[:, None] - points[near]
        pull = weights / (1 + np.square(apart).sum(2)) * (EXAGGERATION if is_early else 1.0)
        apart *= pull[:, :, None]
        # A pair attracts both of its points, whichever is near to which.
        back = [np.bincount(flat, apart[:, :, axis].ravel(), count) for axis in range(2)]
        force = apart.sum(1) - np.stack(back, 1)
        others = points[generator.integers(0, count, DRAWN)]
        squares = np.square(points).sum(1)[:, None] + np.square(others).sum(1)
        push = 1 / (1 + np.maximum(squares - 2 * points @ others.T, 0))
        total = push.sum() * count
        push *= push
        force -= 2 * (points * push.sum(1)[:, None] - push @ others) * (count / total)
        speed = (0.5 if is_early else 0.8) * speed - count / EXAGGERATION * force
        points += speed
        points -= points.mean(0)
    return points
