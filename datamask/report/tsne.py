"""t-SNE: the map of the report's sample."""

from __future__ import annotations

import numpy as np

PRINCIPAL_COMPONENTS, PERPLEXITY, ITERATIONS, ANGLE = 50, 20, 400, 1.0
"""Of t-SNE (docs/log.md#report)."""


def embedding_map(features: np.ndarray, seed: int) -> np.ndarray:
    """t-SNE of some documents, deterministic on one machine.

    Args:
        features: float32, n x D, unit rows.
        seed: of t-SNE.

    Returns:
        float32, n x 2, in units of the map's standard deviation; three decimals.
    """
    from sklearn.manifold import TSNE
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
        start = reduced[:, :2] / deviation * 1e-4
        perplexity = min(PERPLEXITY, (len(features) - 1) / 3)
        made = TSNE(
            2,
            perplexity=perplexity,
            init=start,
            max_iter=ITERATIONS,
            angle=ANGLE,
            random_state=seed % 2**32,
        )
        points = made.fit_transform(reduced)
    result: np.ndarray = np.round(points / (points.std() or 1.0), 3).astype(np.float32)
    return result
