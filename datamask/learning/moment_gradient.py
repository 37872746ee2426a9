"""The gradient of a moment objective's expectation, from the one function of its moments.

Every document is in the subset independently with probability p_j. With F the joint objective at
the expected moments of the WHOLE shard, the gradient for document j is half of f(with j) −
f(without j) to second order: <∇F, δ_j> + (1/2 − p_j) δ_jᵀ ∇²F δ_j, δ_j its own contribution to the
moments. The second part, by which a document is no pair with itself, matters for small subsets and
is left out where it would cost more than the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from datamask.learning.data import ShardData
from datamask.objectives.protocol import MomentObjective, Moments
from datamask.objectives.weighted import WeightedTerm

# Floats that the second-order part may take for one batch, by the order of the moments.
# See docs/log.md#numbers.
CURVATURE_LIMIT = 2**16


def joint_value(terms: Sequence[WeightedTerm], moments: Moments) -> Tensor:
    """Sum of the moment terms at some moments, weighted and scaled; a scalar."""
    total = moments.quality * 0.0
    for term in terms:
        if isinstance(term.objective, MomentObjective):
            total = total + term.factor * term.objective.of_moments(moments)
    return total


def slopes(terms: Sequence[WeightedTerm], moments: Moments) -> Moments:
    """∇F with the count held fixed, as the subset's size is; in the shape of the moments."""
    names = list(moments.scores)
    inputs = [moments.quality, *moments.scores.values(), moments.first_D, moments.second_DD]
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    scores = dict(zip(names, leaves[1:-2], strict=True))
    value = joint_value(terms, Moments(moments.count, leaves[0], scores, leaves[-2], leaves[-1]))
    found = torch.autograd.grad(value, leaves, allow_unused=True)
    filled = [
        torch.zeros_like(leaf) if slope is None else slope
        for leaf, slope in zip(leaves, found, strict=True)
    ]
    named = dict(zip(names, filled[1:-2], strict=True))
    return Moments(moments.count, filled[0], named, filled[-2], filled[-1])


def along(slope: Moments, data: ShardData, rows: Tensor | slice, features_BD: Tensor) -> Tensor:
    """<∇F, δ_j> for some documents, by the precision of `compute.matmul`; float32, shape B."""
    total = slope.quality.to(torch.float32) * data.quality_N[rows]
    for name, value in slope.scores.items():
        total = total + value.to(torch.float32) * data.scores[name][rows]
    if len(slope.first_D):
        total = total + features_BD @ slope.first_D.to(torch.float32)
    if len(slope.second_DD):
        symmetric = ((slope.second_DD + slope.second_DD.T) / 2).to(torch.float32)
        total = total + (data.product(features_BD, symmetric) * features_BD).sum(1)
    return total


def mean_along(slope: Moments, totals: Moments) -> float:
    """<∇F, mean δ> over the documents of some moments."""
    value = slope.quality * totals.quality
    value = value + (slope.first_D * totals.first_D).sum()
    value = value + (slope.second_DD * totals.second_DD).sum()
    for name, score in slope.scores.items():
        value = value + score * totals.scores[name]
    return float(value / totals.count)


def curvatures_of(
    terms: Sequence[WeightedTerm], moments: Moments, features_BD: Tensor
) -> dict[str, Tensor]:
    """δ_jᵀ ∇²F δ_j of each raw term for some documents, shape B; only of terms that have one."""
    found = {}
    for term in terms:
        objective = term.objective
        if not isinstance(objective, MomentObjective) or objective.order == 0:
            continue
        curvature = objective.self_curvature(moments, features_BD)
        if curvature is None and features_BD.numel() <= CURVATURE_LIMIT // features_BD.shape[1]:
            curvature = _by_autograd(objective, moments, features_BD)
        if curvature is not None:
            found[objective.name] = curvature
    return found


def _by_autograd(objective: MomentObjective, moments: Moments, features_BD: Tensor) -> Tensor:
    def second_derivative(x: Tensor) -> Tensor:
        zero, one = torch.zeros_like(moments.count), torch.ones_like(moments.count)

        def value(amount: Tensor) -> Tensor:
            first, second = moments.first_D + amount * x, moments.second_DD
            if len(second):
                second = second + amount * x[:, None] * x[None, :]
            return objective.of_moments(
                Moments(moments.count, moments.quality, moments.scores, first, second)
            )

        def slope(at: Tensor) -> Tensor:
            derivative: Tensor = torch.func.jvp(value, (at,), (one,))[1]
            return derivative

        result: Tensor = torch.func.jvp(slope, (zero,), (one,))[1]
        return result

    wide = features_BD.to(torch.float64)
    return torch.func.vmap(second_derivative)(wide).to(torch.float32)


def moment_gradient(
    terms: Sequence[WeightedTerm],
    moments: Moments,
    data: ShardData,
    rows: Tensor | slice,
    features_BD: Tensor,
    inclusion_B: Tensor,
) -> Tensor:
    """Gradient of the expectation of the moment terms for some documents, shape B."""
    gradient = along(slopes(terms, moments), data, rows, features_BD)
    curvatures = curvatures_of(terms, moments, features_BD)
    for term in terms:
        if term.objective.name in curvatures:
            gradient += (0.5 - inclusion_B) * term.factor * curvatures[term.objective.name]
    return gradient
