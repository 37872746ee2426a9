"""Comparators of k-means: SemDeDup, D4 and cluster-balanced sampling.

SemDeDup (arXiv 2303.09540) drops documents whose cosine to an earlier document of their cluster
exceeds a threshold. Here the threshold follows from the budget: documents are ranked by the cosine
to the nearest better document of their cluster, and the least redundant are kept.
D4 (arXiv 2308.12284) removes near-duplicates with SemDeDup, clusters the remaining documents, and
drops the most prototypical ones: those nearest to their centroid.
Cluster-balanced sampling takes the best document of every cluster, then the second best of every
cluster, and so on (compare arXiv 2402.10739 and the sampling of DiverseEvol, arXiv 2311.08182).
"""

from __future__ import annotations

import numpy as np

from datamask.objectives.products import cosines

# Chosen by experiment: docs/log.md#comparators.
DOCUMENTS_PER_CLUSTER = 100
ITERATIONS = 20

SHARE_DEDUPLICATED = 0.75
"""Fraction of the documents that D4 keeps in its first step (docs/log.md#comparators)."""


def clusters_of(
    features: np.ndarray, num_selected: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Run k-means with a cluster per hundred documents, at most one per selected document.

    Returns each document's cluster (shape N), and the centroids (clusters x D).
    """
    number = max(1, min(len(features) // DOCUMENTS_PER_CLUSTER, num_selected))
    return k_means(features, number, seed)


def k_means(
    features: np.ndarray,
    number: int,
    seed: int,
    weights: np.ndarray | None = None,
    attempts: int = 1,
) -> tuple[np.ndarray, np.ndarray]:
    """Return each point's cluster (shape N), and the centroids (number x D), by k-means on batches.

    Points may have *weights* (shape N). The best of *attempts* runs counts.
    """
    from sklearn.cluster import MiniBatchKMeans

    means = MiniBatchKMeans(number, random_state=seed % 2**32, n_init=attempts, max_iter=ITERATIONS)
    return means.fit_predict(features, sample_weight=weights), means.cluster_centers_


def semdedup(features: np.ndarray, num_selected: int, seed: int) -> np.ndarray:
    """Rank documents by how little they repeat better documents of their cluster.

    The value is minus the largest cosine to an earlier document of the cluster, 1 if there is none.
    """
    ranked = np.zeros(len(features))
    labels, centroids = clusters_of(features, num_selected, seed)
    for cluster in range(len(centroids)):
        rows = np.flatnonzero(labels == cluster)
        nearest = np.full(len(rows), -1.0)
        for start in range(1, len(rows), 512):
            part = cosines(features[rows[start : start + 512]], features[rows[: start + 512]])
            earlier = np.tri(len(part), part.shape[1], start - 1, dtype=bool)
            nearest[start : start + 512] = part.max(1, initial=-np.inf, where=earlier)
        ranked[rows] = -nearest
    return ranked


def cluster_balanced(features: np.ndarray, num_selected: int, seed: int) -> np.ndarray:
    """Return minus the rank of each document within its cluster by quality; the best has 0."""
    labels, centroids = clusters_of(features, num_selected, seed)
    order = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[order], np.arange(len(centroids)))
    ranks = np.empty(len(features))
    ranks[order] = np.arange(len(features)) - starts[labels[order]]
    return -ranks


def d4(features: np.ndarray, num_selected: int, seed: int) -> np.ndarray:
    """Return 1 minus the cosine to the centroid; at most −1 for documents dropped as duplicates."""
    ranked = semdedup(features, num_selected, seed)
    kept = max(num_selected, round(SHARE_DEDUPLICATED * len(features)))
    rows = np.sort(np.argsort(-ranked, kind="stable")[:kept])
    labels, centroids = clusters_of(features[rows], num_selected, seed)
    centroids = centroids / np.maximum(np.linalg.norm(centroids, axis=1, keepdims=True), 1e-12)
    result = ranked - 2.0
    result[rows] = 1.0 - np.einsum("nd,nd->n", features[rows], centroids[labels])
    return result
