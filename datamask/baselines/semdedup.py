"""SemDeDup: cluster, then keep one of each group of near-duplicates (arXiv 2303.09540).

The published method drops documents whose cosine to an earlier document of their cluster exceeds a
threshold. Here the threshold follows from the budget: documents are ranked by the cosine to the
nearest better document of their cluster, and the least redundant are kept.
"""

from __future__ import annotations

import numpy as np

# See docs/log.md#comparators.
DOCUMENTS_PER_CLUSTER = 100
ITERATIONS = 20


def clusters_of(
    features: np.ndarray, num_selected: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """k-means with a cluster per hundred documents, at most one per selected document; N >= 1.

    Returns each document's cluster (shape N), and the centroids (clusters x D).
    """
    from sklearn.cluster import MiniBatchKMeans

    number = max(1, min(len(features) // DOCUMENTS_PER_CLUSTER, num_selected))
    means = MiniBatchKMeans(number, random_state=seed % 2**32, n_init=1, max_iter=ITERATIONS)
    return means.fit_predict(features), means.cluster_centers_


def representatives(features: np.ndarray, num_selected: int, seed: int) -> np.ndarray:
    """How little each document repeats better documents of its cluster.

    It is minus the largest cosine to an earlier document of the cluster, 1 if there is none.
    """
    ranked = np.zeros(len(features))
    if not len(features):
        return ranked
    labels, centroids = clusters_of(features, num_selected, seed)
    for cluster in range(len(centroids)):
        rows = np.flatnonzero(labels == cluster)
        nearest = np.full(len(rows), -1.0)
        for start in range(1, len(rows), 512):
            part = features[rows[start : start + 512]] @ features[rows[: start + 512]].T
            for at in range(len(part)):
                nearest[start + at] = part[at, : start + at].max()
        ranked[rows] = -nearest
    return ranked
