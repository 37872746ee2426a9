"""Comparators that cluster embeddings: cluster-balanced sampling and D4.

Cluster-balanced sampling takes the best document of every cluster, then the second best of every
cluster, and so on (compare arXiv 2402.10739 and the sampling of DiverseEvol, arXiv 2311.08182).
D4 (arXiv 2308.12284) removes near-duplicates with SemDeDup, clusters the remaining documents, and
drops the most prototypical ones: those nearest to their centroid.
"""

from __future__ import annotations

import numpy as np

from datamask.baselines.semdedup import clusters_of, representatives

SHARE_DEDUPLICATED = 0.75
"""Share of the documents that D4 keeps in its first step (docs/log.md#comparators)."""


def cluster_balanced(features: np.ndarray, num_selected: int, seed: int) -> np.ndarray:
    """Minus the rank of each document within its cluster by quality; the best has 0."""
    if not len(features):
        return np.zeros(0)
    labels, centroids = clusters_of(features, num_selected, seed)
    order = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[order], np.arange(len(centroids)))
    places = np.empty(len(features))
    places[order] = np.arange(len(features)) - starts[labels[order]]
    return -places


def d4(features: np.ndarray, num_selected: int, seed: int) -> np.ndarray:
    """1 minus the cosine to the centroid; at most −1 for what deduplication drops."""
    ranked = representatives(features, num_selected, seed)
    kept = max(num_selected, round(SHARE_DEDUPLICATED * len(features)))
    rows = np.sort(np.argsort(-ranked, kind="stable")[:kept])
    result = ranked - 2.0
    if len(rows):
        labels, centroids = clusters_of(features[rows], num_selected, seed)
        centroids /= np.maximum(np.linalg.norm(centroids, axis=1, keepdims=True), 1e-12)
        result[rows] = 1.0 - np.einsum("nd,nd->n", features[rows], centroids[labels])
    return result
