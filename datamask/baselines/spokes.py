"""Method `spokes`: sampling probabilities of the most diverse mixture, with quality.

After SPOKES (arXiv 2606.15216): exponentiated gradient ascent on the logarithm of the Vendi score
of a distribution p over documents, H(Σ pᵢ xᵢ xᵢᵀ), where H is the entropy of the eigenvalues. Each
step multiplies pᵢ by exp((1 − λ) gᵢ + λ zᵢ), where gᵢ = −xᵢᵀ log(Σ p x xᵀ) xᵢ is the gradient and
zᵢ the quality in deviations. Differences from the paper: vectors are the run's embeddings, not
gradients of a model, and no document has more than the share 1/S, so the S documents of the highest
probability are the selection.
"""

from __future__ import annotations

import numpy as np
import torch

STEPS = 30
"""Steps of ascent (docs/log.md#comparators)."""
FLOOR = 1e-6
"""The least eigenvalue of which a logarithm is taken (docs/log.md#comparators)."""


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
