"""DiSF: Σ_{a≠b} R_ab² / 10000, R the D x D correlation matrix of U, to be minimised.

Each dimension is centred and divided by (its standard deviation over U + 1e-8), variance with
S − 1. Fewer than two documents have no correlation: the value is 0. Source: arXiv 2504.20644 and
its public code.

With Z the S x D standardised rows, ‖ZᵀZ‖² = ‖ZZᵀ‖². For masks, the cheaper of D x D (cost S·D²)
and S x S (cost S²·D) is formed, and the known diagonal of ZᵀZ is subtracted.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from datamask.objectives.products import times_vector
from datamask.objectives.protocol import Batch, MomentObjective, Moments

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
        mean, variance, deviation = _spread(moments)
        weight = deviation.reciprocal().square() / (moments.count - 1).clamp(min=1.0)
        centred = torch.addr(moments.second_DD, moments.count * mean, mean, alpha=-1)
        # Fewer D x D operations, forwards and backwards, than through the correlation matrix.
        pairs = (weight * times_vector(centred.square(), weight)).sum()
        total = pairs - (variance / deviation.square()).square().sum()
        return total / DIVISOR * (moments.count > 1)

    def self_curvature(self, moments: Moments) -> Callable[[Tensor], Tensor]:
        """2 Σ_{a≠b} z_a² z_b² / (S − 1)² / 10000, z the standardised document.

        Mean and deviations are held fixed; the effect of one document on them is smaller by 1/S.
        """
        mean, _, deviation = _spread(moments)
        mean, inverse = mean.to(torch.float32), (1 / deviation).to(torch.float32)
        degrees = (moments.count - 1).clamp(min=1.0).to(torch.float32)
        factor = 2 / degrees.square() / DIVISOR * (moments.count > 1)

        def curvature(features_BD: Tensor) -> Tensor:
            square = (features_BD - mean).mul_(inverse).square_()
            return factor * (square.sum(1).square() - square.square_().sum(1))

        return curvature

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


def _spread(moments: Moments) -> tuple[Tensor, Tensor, Tensor]:
    # Mean, variance and standard deviation of each dimension, the last at least rounding noise.
    count, squares = moments.count, torch.diagonal(moments.second_DD)
    mean = moments.first_D / count.clamp(min=1.0)
    variance = (squares - count * mean * mean) / (count - 1).clamp(min=1.0)
    floor = NOISE * squares.detach() / count.clamp(min=1.0) + EPSILON**2
    return mean, variance, torch.maximum(variance, floor).sqrt() + EPSILON
