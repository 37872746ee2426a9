"""Method `lightweight_coreset`: a coreset of k-means (Bachem, Lucic and Krause, KDD 2018).

A document is drawn with probability 1 / 2N + d² / 2 Σd², with its distance d from the mean of all.
A solution of k-means on so drawn documents is nearly one on all of them, if each counts by the
inverse of its probability. Here they are drawn without replacement and count equally.
"""

from __future__ import annotations

import numpy as np


def lightweight_coreset(features: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Logarithms of the probabilities with Gumbel noise: the S largest are a draw of S."""
    away = np.square(features - features.mean(0, dtype=np.float64)).sum(1, dtype=np.float64)
    count = max(len(features), 1)
    probabilities = 0.5 / count + 0.5 * away / (away.sum() or 1.0)
    result: np.ndarray = np.log(probabilities) + generator.gumbel(size=len(features))
    return result
