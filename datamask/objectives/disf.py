"""DiSF: Σ_{a≠b} R_ab² / 10000, R the D x D correlation matrix of U, to be minimised.

Each dimension is centred and divided by (its standard deviation over U + 1e-8), variance with
S − 1. Fewer than two documents have no correlation: the value is 0. Source: arXiv 2504.20644 and
its public code.

With Z the S x D standardised rows, ‖ZᵀZ‖² = ‖ZZᵀ‖². For masks, the cheaper of D x D (cost S·D²)
and S x S (cost S²·D) is formed, and the known diagonal of ZᵀZ is subtracted.
"""

from __future__ import annotations

import torch
from torch import Tensor

from datamask.objectives.protocol import CACHED_ROWS, Batch, MomentObjective, Moments

# See docs/log.md#numbers.
EPSILON = 1e-8
DIVISOR = 10_000.0
# Below this share of the mean square, the variance of a dimension is rounding noise of float32.
NOISE = 1e-6


class DiSF(MomentObjective):
    """Squared off-diagonal correlations between embedding dimensions."""

    name = "disf"
    maximise = False

    def of_moments(self, moments: Moments) -> Tensor:
        """The value from Σx and Σxxᵀ, for gradients and for shards reduced to moments."""
        count = moments.count
        _, covariance, deviation = _covariance(moments)
        weight = deviation.reciprocal().square()
        square = covariance.square()
        # Fewer D x D operations, forwards and backwards, than through the correlation matrix.
        total = weight @ (square @ weight) - (torch.diagonal(square) * weight.square()).sum()
        return total / DIVISOR * (count > 1)

    def self_curvature(self, moments: Moments, features_BD: Tensor) -> Tensor:
        """2 Σ_{a≠b} z_a² z_b² / (S − 1)² / 10000, z the standardised document.

        Mean and deviations are held fixed; the effect of one document on them is smaller by 1/S.
        """
        mean, _, deviation = _covariance(moments)
        mean, inverse = mean.to(torch.float32), (1 / deviation).to(torch.float32)
        parts = []
        for block in torch.split(features_BD, CACHED_ROWS):
            square = (block - mean).mul_(inverse).square_()
            parts.append(square.sum(1).square() - square.square_().sum(1))
        pairs = torch.cat(parts)
        degrees = (moments.count - 1).clamp(min=1.0).to(torch.float32)
        return 2 * pairs / degrees.square() / DIVISOR * (moments.count > 1)

    def values(self, masks_GB: Tensor, batch: Batch) -> Tensor:
        """The values of masks (bool, G x B) by the cheaper of the two routes; shape G."""
        num_masks = masks_GB.shape[0]
        count = int(masks_GB[0].sum()) if num_masks else 0
        if count < 2:
            return batch.features_BD.new_zeros(num_masks)
        rows_GS = masks_GB.nonzero()[:, 1].view(num_masks, count)
        dimension = batch.features_BD.shape[1]
        per_mask = 4 * (3 * count * dimension + min(count, dimension) ** 2)
        group = max(1, batch.working_set_bytes // per_mask)
        return torch.cat(
            [self._by_rows(rows, batch.features_BD) for rows in torch.split(rows_GS, group)]
        )

    def _by_rows(self, rows_GS: Tensor, features_BD: Tensor) -> Tensor:
        selected_GSD = features_BD[rows_GS]
        count, dimension = selected_GSD.shape[1:]
        centred = selected_GSD - selected_GSD.mean(1, keepdim=True)
        variance = centred.square().sum(1, keepdim=True) / (count - 1)
        standard = centred / (variance.sqrt() + EPSILON)
        diagonal = standard.square().sum(1) / (count - 1)
        transposed = standard.transpose(1, 2)
        product = standard @ transposed if count < dimension else transposed @ standard
        total = (product / (count - 1)).square().sum(2).sum(1) - diagonal.square().sum(1)
        return total / DIVISOR


def _covariance(moments: Moments) -> tuple[Tensor, Tensor, Tensor]:
    # Mean (D), covariance (D x D) and standard deviation (D), at least the rounding noise.
    count = moments.count
    mean = moments.first_D / count.clamp(min=1.0)
    centred = moments.second_DD - count * mean[:, None] * mean[None, :]
    covariance = centred / (count - 1).clamp(min=1.0)
    square = torch.diagonal(moments.second_DD) / count.clamp(min=1.0)
    floor = NOISE * square.detach() + EPSILON**2
    deviation = torch.maximum(torch.diagonal(covariance), floor).sqrt() + EPSILON
    return mean, covariance, deviation
