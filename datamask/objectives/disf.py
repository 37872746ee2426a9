"""DiSF: Σ_{a≠b} R_ab² / 10000, R the D x D correlation matrix of U, to be minimised.

Each dimension is centred and divided by (its standard deviation over U + 1e-8), variance with
S − 1. Fewer than two documents have no correlation: the value is 0. Source: arXiv 2504.20644 and
its public code.

With Z the S x D standardised rows, ‖ZᵀZ‖² = ‖ZZᵀ‖². For masks, the cheaper of D x D (cost S·D²)
and S x S (cost S²·D) is formed, and the known diagonal of ZᵀZ is subtracted. A rotation of the
vectors changes the value, because each dimension has a deviation of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from datamask.objectives.products import times_vector
from datamask.objectives.protocol import CACHED_ROWS, Batch, MomentObjective, Moments

# Added to deviations, as in the public code (docs/log.md#numbers).
EPSILON = 1e-8
DIVISOR = 10_000.0
# Below this fraction of the mean square, the variance of a dimension is rounding noise of float32.
NOISE = 1e-6
# Sums over pairs of documents leave out weights below this fraction of the mean weight.
LEAST_WEIGHT = 1e-3


class DiSF(MomentObjective):
    """Squared off-diagonal correlations between embedding dimensions."""

    name = "disf"
    maximise = False

    def of_few(self, features_ND: Tensor) -> MomentObjective | None:
        """Return `DiSFOfFew`; None for a subclass, whose function may differ."""
        return DiSFOfFew(features_ND) if type(self) is DiSF else None

    def of_moments(self, moments: Moments) -> Tensor:
        """Return the value from Σx and Σxxᵀ, for gradients and for shards reduced to moments."""
        mean, variance, deviation = self._spread(moments)
        weight = deviation.reciprocal().square() / (moments.count - 1).clamp(min=1.0)
        pairs = self._pairs(moments, mean, weight)
        total = pairs - (variance / deviation.square()).square().sum()
        return total / DIVISOR * (moments.count > 1)

    def _pairs(self, moments: Moments, mean_D: Tensor, weight_D: Tensor) -> Tensor:
        """Return Σ_ab w_a w_b (Σ y_a y_b)², y the centred documents."""
        centred = torch.addr(moments.second_DD, moments.count * mean_D, mean_D, alpha=-1)
        # This takes fewer D x D operations, forwards and backwards, than the correlation matrix.
        return (weight_D * times_vector(centred.square(), weight_D)).sum()

    def _squares(self, moments: Moments) -> Tensor:
        """Return Σ x² of each dimension, shape D."""
        return torch.diagonal(moments.second_DD)

    def _spread(self, moments: Moments) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean, variance and deviation of each dimension, at least rounding noise."""
        count, squares = moments.count, self._squares(moments)
        mean = moments.first_D / count.clamp(min=1.0)
        variance = (squares - count * mean * mean) / (count - 1).clamp(min=1.0)
        floor = NOISE * squares.detach() / count.clamp(min=1.0) + EPSILON**2
        return mean, variance, torch.maximum(variance, floor).sqrt() + EPSILON

    def self_curvature(self, moments: Moments) -> Callable[[Tensor], Tensor]:
        """Return 2 Σ_{a≠b} z_a² z_b² / (S − 1)² / 10000, z the standardised document.

        Mean and deviations are held fixed; the effect of one document on them is smaller by 1/S.
        """
        mean, _, deviation = self._spread(moments)
        mean, inverse = mean.to(torch.float32), (1 / deviation).to(torch.float32)
        degrees = (moments.count - 1).clamp(min=1.0).to(torch.float32)
        factor = 2 / degrees.square() / DIVISOR * (moments.count > 1)

        def curvature(features_BD: Tensor) -> Tensor:
            square = (features_BD - mean).mul_(inverse).square_()
            return factor * (square.sum(1).square() - square.square_().sum(1))

        return curvature

    def values(self, masks_GB: Tensor, batch: Batch) -> Tensor:
        """Return the values of masks (bool, G x B) by the cheaper of the two routes; shape G."""
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


class DiSFOfFew(DiSF):
    """DiSF of a shard with fewer documents than dimensions, by N x N products in place of D x D.

    `second_DD` of its moments has the weight v of each document in Σ v x xᵀ (shape N).

    Args:
        features_ND: all documents, float32.
    """

    def __init__(self, features_ND: Tensor) -> None:
        self.features_ND, self.squares_ND = features_ND, features_ND.square()

    def _pairs(self, moments: Moments, mean_D: Tensor, weight_D: Tensor) -> Tensor:
        pairs: Tensor = _Pairs.apply(  # type: ignore[no-untyped-call]
            moments.second_DD, weight_D, self.features_ND, mean_D.detach().to(torch.float32)
        )
        return pairs

    def _squares(self, moments: Moments) -> Tensor:
        weights = moments.second_DD
        # The vector comes first, in an eighth of the time of `times_vector`.
        rows = torch.stack((weights, torch.zeros_like(weights))).to(torch.float32)
        return (rows @ self.squares_ND)[0].to(weights.dtype)


class _Pairs(torch.autograd.Function):
    """Σ_ij v_i v_j g_ij², g_ij = Σ_a w_a y_ia y_ja, which is Σ_ab w_a w_b (Σ_i v_i y_ia y_ib)².

    The mean does not move: as Σ v y = 0, its change adds nothing to first order.
    """

    @staticmethod
    def forward(
        context: Any, v_N: Tensor, weight_D: Tensor, features_ND: Tensor, mean_D: Tensor
    ) -> Tensor:
        """Sum over the S documents whose v is noticeable."""
        is_in = v_N.abs() > LEAST_WEIGHT * v_N.abs().mean()
        v_S, centred_SD = v_N[is_in], features_ND[is_in] - mean_D
        weighted_SD = centred_SD * weight_D.to(torch.float32)
        products_SS = centred_SD.new_empty(len(v_S), len(v_S))
        step = CACHED_ROWS // 4
        for start in range(0, len(v_S), step):
            rows = slice(start, start + step)
            products_SS[rows, start:] = centred_SD[rows] @ weighted_SD[start:].T
        products_SS.triu_().add_(products_SS.triu(1).T)
        context.save_for_backward(
            is_in, v_S, centred_SD, weighted_SD, products_SS, features_ND, mean_D
        )
        return (v_S * times_vector(products_SS.to(v_S.dtype).square(), v_S)).sum()

    @staticmethod
    def backward(context: Any, *slopes: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Return 2 Σ_i v_i g_ij² for every document j, and 2 Σ_ij v_i v_j g_ij y_ia y_ja."""
        is_in, v_S, centred_SD, weighted_SD, products_SS, features_ND, mean_D = (
            context.saved_tensors
        )
        narrow_S, by_v = v_S.to(torch.float32), torch.empty_like(features_ND[:, 0])
        by_v[is_in] = times_vector(products_SS.square(), narrow_S)
        others_NS = (features_ND[~is_in] - mean_D) @ weighted_SD.T
        by_v[~is_in] = times_vector(others_NS.square_(), narrow_S)
        pulled_SD = (products_SS * narrow_S * narrow_S[:, None]) @ centred_SD
        by_weight = pulled_SD.mul_(centred_SD).sum(0)
        factor = 2 * slopes[0]
        return factor * by_v, factor * by_weight, None, None
