"""The gradient of a moment objective's expectation.

Every document is in the subset independently with probability p_j. With F the joint objective at
the expected moments of the whole shard and δ_j the contribution of document j to the moments, the
gradient for j is half of f(with j) − f(without j) to second order:

    <∇F, δ_j> + (1/2 − p_j) δ_jᵀ ∇²F δ_j

The second term removes the pair that a document forms with itself. It matters for small subsets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from datamask.learning.data import ShardData, highest_order, moments_of
from datamask.learning.neighbours import Neighbours
from datamask.objectives.products import times_vector
from datamask.objectives.protocol import CACHED_ROWS, MomentObjective, Moments
from datamask.objectives.weighted import WeightedTerm, coverage_factor


def joint_value(terms: Sequence[WeightedTerm], moments: Moments) -> Tensor:
    """Return the weighted and scaled sum of the moment terms; a scalar."""
    total = moments.quality * 0.0
    for term in terms:
        if isinstance(term.objective, MomentObjective):
            total = total + term.factor * term.objective.of_moments(moments)
    return total


def slopes(terms: Sequence[WeightedTerm], moments: Moments) -> Moments:
    """Return ∇F with the count held fixed, in the shape of the moments."""
    if highest_order(terms) < 0:  # No term reads moments, so nothing is differentiated.
        return moments.mapped(torch.zeros_like)
    inputs = [moments.quality, *moments.scores.values(), moments.first_D, moments.second_DD]
    leaves = [tensor.detach().to(torch.float32).requires_grad_() for tensor in inputs]

    def as_moments(tensors: Sequence[Tensor]) -> Moments:
        scores = dict(zip(moments.scores, tensors[1:-2], strict=True))
        return Moments(moments.count.to(tensors[0]), tensors[0], scores, tensors[-2], tensors[-1])

    value = joint_value(terms, as_moments(leaves))
    slope = as_moments(
        torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
    )
    # Until torch 2.10, zeros that stand for unused leaves ask for gradients of their own.
    return slope.mapped(lambda total: total.detach().to(moments.count))


def raw_slope(objective: MomentObjective, moments: Moments) -> Moments:
    """Return the gradient of a raw value, W symmetric, only for what the objective reads.

    The moments may have a higher order; unread parts would cost a product with zeros.
    """
    slope = slopes([WeightedTerm(objective, 1.0)], moments)
    sign, second = 1.0 if objective.maximise else -1.0, slope.second_DD
    if objective.order < 2:
        second = second[:0]
    elif second.dim() == 2:
        second = (second + second.T) / 2
    return Moments(
        slope.count,
        sign * slope.quality,
        {name: sign * value for name, value in slope.scores.items()},
        sign * slope.first_D[: None if objective.order >= 1 else 0],
        sign * second,
    )


def along(slope: Moments, data: ShardData, rows: Tensor | slice = slice(None)) -> Tensor:
    """Return <∇F, δ_j> of some documents, precise as `compute.matmul`; float32, shape B."""
    return along_and(slope, data, rows)[0]


def along_and(
    slope: Moments, data: ShardData, rows: Tensor | slice, *others: Callable[[Tensor], Tensor]
) -> Tensor:
    """Compute `along` and functions of embeddings in one pass over them; a row for each."""
    total = slope.quality.to(torch.float32) * data.quality_N[rows]
    for name, value in slope.scores.items():
        total = total + value.to(torch.float32) * data.scores[name][rows]
    values = torch.stack([total, *(torch.zeros_like(total) for _ in others)])
    first = slope.first_D.to(torch.float32)
    form = None
    if len(slope.second_DD) and data.by_document:
        values[0] += slope.second_DD[data.feature_rows(rows)]
    elif len(slope.second_DD):
        form = quadratic_form(data, slope.second_DD)
    for block, features in data.blocks(rows, slope.order):
        if len(first):
            values[0, block] += times_vector(features, first)
        if form:
            values[0, block] += form(features)
        for value, function in zip(values[1:], others, strict=True):
            value[block] = function(features)
    return values


def quadratic_form(data: ShardData, matrix_DD: Tensor) -> Callable[[Tensor], Tensor]:
    """Return xᵀ W x as a function of documents, B x D; float32, shape B."""
    both = (matrix_DD + matrix_DD.T).to(torch.float32).triu_()
    both.diagonal().mul_(0.5)
    doubled = data.narrow(both)

    def form(features_BD: Tensor) -> Tensor:
        narrow, total = data.narrow(features_BD, CACHED_ROWS), torch.zeros_like(features_BD[:, 0])
        for start, stop in data.triangle():
            product = data.product(narrow[:, :stop], doubled[:stop, start:stop])[: len(total)]
            total += product.mul_(features_BD[:, start:stop]).sum(1)
        return total

    return form


def mean_along(slope: Moments, totals: Moments) -> float:
    """Return the mean of <∇F, δ_j> over the documents whose moments are *totals*."""
    value = slope.quality * totals.quality
    value = value + (slope.first_D * totals.first_D).sum()
    # Sum rows first: the sum of all at once rounds differently with each number of threads.
    value = value + (slope.second_DD * totals.second_DD).sum(0).sum()
    for name, score in slope.scores.items():
        value = value + score * totals.scores[name]
    return float(value / totals.count)


def curvature_of(terms: Sequence[WeightedTerm], moments: Moments) -> Callable[[Tensor], Tensor]:
    """Return δ_jᵀ ∇²F δ_j as a function of documents, B x D; shape B. Terms without one add 0."""
    functions = []
    for term in terms:
        objective = term.objective
        if isinstance(objective, MomentObjective) and (
            function := objective.self_curvature(moments)
        ):
            functions.append((term.factor, function))

    def curvature(features_BD: Tensor) -> Tensor:
        total = features_BD.new_zeros(len(features_BD))
        for factor, function in functions:
            total += factor * function(features_BD)
        return total

    return curvature


def derivatives(
    terms: Sequence[WeightedTerm], moments: Moments, data: ShardData, rows: Tensor | slice
) -> tuple[Moments, Tensor, Tensor]:
    """Return ∇F, and <∇F, δ_j> and δ_jᵀ ∇²F δ_j of some documents, shape B."""
    slope = slopes(terms, moments)
    plain, curved = along_and(slope, data, rows, curvature_of(terms, moments))
    return slope, plain, curved


def moment_gradient(
    terms: Sequence[WeightedTerm],
    moments: Moments,
    data: ShardData,
    rows: Tensor | slice,
    inclusion_B: Tensor,
) -> Tensor:
    """Return the gradient of the expected moment terms for some documents, shape B."""
    _, plain, curvature = derivatives(terms, moments, data, rows)
    return plain + (0.5 - inclusion_B) * curvature


def marginal_gains(
    data: ShardData,
    terms: Sequence[WeightedTerm],
    mask_N: Tensor,
    moments: Moments | None = None,
    neighbours: Neighbours | None = None,
) -> np.ndarray:
    """Return the marginal gain of every document at a mask; float64, shape N.

    Args:
        data: the shard.
        terms: terms with a weight: moment objectives and facility location.
        mask_N: the selected documents; bool.
        moments: of a selection that contains the mask. None: moments of the mask itself or, if it
            is empty, of a selection that contains an equal part of every document.
        neighbours: for facility location.
    """
    exact, order = data.exact, highest_order(terms)
    inclusion = mask_N.to(torch.float32)
    if moments is None:
        has_selected = bool(mask_N.any())
        moments = moments_of(
            exact, inclusion if has_selected else torch.ones_like(inclusion), order
        )
        moments = moments if has_selected else moments.scaled(1.0)
    values = torch.zeros_like(data.quality_N)
    if neighbours:
        values += coverage_factor(terms) * neighbours.gains(mask_N)
    values += moment_gradient(terms, moments, exact, slice(None), inclusion)
    return np.asarray(values.cpu().numpy(), np.float64)
