"""t-SNE: the map of the report's sample."""

from __future__ import annotations

import numpy as np

PRINCIPAL_COMPONENTS, PERPLEXITY, ITERATIONS, ANGLE = 50, 20, 400, 1.0
"""Of t-SNE (docs/log.md#report)."""


def embedding_map(features: np.ndarray, seed: int) -> np.ndarray:
    """Compute t-SNE of some documents, deterministic on one machine.

    Args:
        features: float32, n x D, unit rows.
        seed: of t-SNE.

    Returns:
        float32, n x 2, in units of the map's standard deviation; three decimals.
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    if len(features) < 4 or not np.ptp(features, axis=0).any():
        return np.zeros((len(features), 2), dtype=np.float32)
    # Sums over threads differ in their last digits, and t-SNE amplifies the difference.
    with threadpool_limits(1):
        number = min(PRINCIPAL_COMPONENTS, *features.shape)
        reduced = PCA(number, svd_solver="full").fit_transform(features)
        made = TSNE(
            perplexity=min(PERPLEXITY, (len(features) - 1) / 3),
            max_iter=ITERATIONS,
            angle=ANGLE,
            random_state=seed % 2**32,
        )
        points = made.fit_transform(reduced)
    result: np.ndarray = np.round(points / (points.std() or 1.0), 3).astype(np.float32)
    return result
