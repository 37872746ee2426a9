"""Swap refinement: exchange documents near the threshold as long as the true objective rises.

The top S of the logits round a relaxation; this pass corrects the rounding against the objective
itself. Small shards try every swap of two documents. Larger ones rank the weakest selected and the
best rejected documents by their marginal gain, swap a block of them, and keep the swap only if the
exact objective rises; otherwise they halve the block. The objective never falls.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from datamask.learning.data import ShardData, add_moments, highest_order, moments_of
from datamask.learning.moment_gradient import joint_value, moment_gradient
from datamask.learning.neighbours import marginal_coverage
from datamask.learning.problem import Problem
from datamask.objectives.facility_location import FacilityLocation
from datamask.objectives.protocol import Moments
from datamask.objectives.weighted import WeightedObjective, WeightedTerm, coverage_factor

# Every single swap is tried if there are at most EVERY_SWAP; every double swap, if at most PAIRS.
# Otherwise CANDIDATES of each side are ranked in the first round, and the NEAREST of these in later
# rounds. See docs/log.md#swaps.
EVERY_SWAP = 1024
PAIRS = 2048
CANDIDATES = 2048
NEAREST = 256
ROUNDS = 20
LEAST_GAIN = 1e-7


def refine_by_swaps(problem: Problem, mask_N: Tensor, logits_N: Tensor) -> Tensor:
    """Swap up to `swap_refinement` pairs; return a mask of the same size, bool, shape N.

    Objectives without moments other than facility location, and facility location with fewer probes
    than documents, are refined on small shards only.
    """
    data, objective, num_selected = problem.data, problem.objective, problem.num_selected
    swaps = problem.selection.swap_refinement
    if swaps == 0:
        return mask_N
    if num_selected * (data.num_documents - num_selected) <= EVERY_SWAP and data.fits():
        return _every_swap(data, objective, mask_N, swaps)
    # With a sample of probes, swaps would favour documents that cover the sample.
    probes = [
        t.objective.probes for t in objective.active if isinstance(t.objective, FacilityLocation)
    ]
    if objective.has_expectation and data.num_documents <= min(probes, default=data.num_documents):
        return _blocks(data, objective.active, mask_N, logits_N, swaps)
    return mask_N


def _swapped(mask_N: Tensor, num_pairs: int) -> Tensor:
    # Yield all masks that differ from the given one by one swap, or by two, in a fixed order.
    inside, outside = mask_N.nonzero()[:, 0], (~mask_N).nonzero()[:, 0]
    if num_pairs == 2:
        inside, outside = torch.combinations(inside, 2), torch.combinations(outside, 2)
    number = len(inside) * len(outside)
    masks = mask_N.repeat(number, 1)
    leaving = inside.repeat_interleave(len(outside), 0).view(number, -1)
    coming = outside.repeat(len(inside), *([1] * (outside.dim() - 1))).view(number, -1)
    return masks.scatter_(1, leaving, False).scatter_(1, coming, True)


def _every_swap(
    data: ShardData, objective: WeightedObjective, mask_N: Tensor, swaps: int
) -> Tensor:
    batch = data.everything()
    best = float(objective.values(mask_N[None], batch)[0])
    while swaps > 0:
        count = int(mask_N.sum())
        two = math.comb(count, 2) * math.comb(data.num_documents - count, 2)
        for num_pairs in (1, 2) if 0 < two <= PAIRS and swaps > 1 else (1,):
            masks = _swapped(mask_N, num_pairs)
            values = objective.values(masks, batch)
            index = int(values.argmax())
            if float(values[index]) > best + LEAST_GAIN * max(abs(best), 1.0):
                mask_N, best = masks[index], float(values[index])
                swaps -= num_pairs
                break
        else:
            break
    return mask_N


class _Coverage:
    """Facility location of the candidates C for all documents R.

    `base_R` is the largest cosine of each document with the other selected documents; −1 if none.
    """

    def __init__(self, data: ShardData, mask_N: Tensor, rows_C: Tensor) -> None:
        other = mask_N.clone()
        other[rows_C] = False
        probes = data.rows(slice(None))
        self.similarity_RC = probes @ probes[rows_C].T
        self.base_R = torch.full((len(probes),), -1.0, device=data.device)
        if bool(other.any()):
            self.base_R = (probes @ probes[other].T).amax(1)

    def value(self, chosen_C: Tensor) -> float:
        best = torch.maximum(self.base_R, self.similarity_RC[:, chosen_C].amax(1))
        return float(best.mean(dtype=torch.float64))

    def marginal(self, chosen_C: Tensor) -> Tensor:
        """Return the gain of each rejected candidate and the loss of each selected one; shape C."""
        return marginal_coverage(self.similarity_RC, self.base_R, chosen_C) / len(self.base_R)


def _blocks(
    data: ShardData,
    terms: Sequence[WeightedTerm],
    mask_N: Tensor,
    logits_N: Tensor,
    swaps: int,
) -> Tensor:
    """Swap blocks of the candidates nearest the threshold."""
    factor = coverage_factor(terms)
    moments = moments_of(data, mask_N.to(torch.float32), highest_order(terms))
    most = min(CANDIDATES, data.working_set_bytes // (4 * 8 * max(data.dimension, 2048)))
    ranked = _ranked(logits_N, mask_N)
    rows = torch.cat([side[: max(64, most)] for side in ranked]).sort().values
    candidates, chosen = data.part(rows), mask_N[rows]
    coverage = _Coverage(data, mask_N, rows) if factor else None

    def value(at: Moments, chosen_C: Tensor) -> float:
        total = float(joint_value(terms, at))
        return total + (factor * coverage.value(chosen_C) if coverage else 0.0)

    current = value(moments, chosen)
    size = min(swaps, int(chosen.sum()), int((~chosen).sum()))
    margin = torch.zeros(len(rows), device=data.device)
    near = torch.arange(len(rows), device=data.device)
    for _ in range(ROUNDS):
        size = min(size, swaps)
        if size < 1:
            break
        inclusion = chosen[near].to(torch.float32)
        margin[near] = moment_gradient(terms, moments, candidates, near, inclusion)
        if coverage:
            margin[near] += factor * coverage.marginal(chosen)[near]
        leaving, coming = (near[ranked] for ranked in _ranked(margin[near], chosen[near]))
        near = torch.cat([leaving[:NEAREST], coming[:NEAREST]]).sort().values
        number = min(len(leaving), len(coming))
        size = min(size, int((margin[coming[:number]] > margin[leaving[:number]]).sum()))
        while size >= 1:
            trial = chosen.clone()
            trial[leaving[:size]] = False
            trial[coming[:size]] = True
            moved = torch.cat([leaving[:size], coming[:size]])
            change = trial[moved].to(torch.float32) - chosen[moved].to(torch.float32)
            at = add_moments(moments, candidates, moved, change)
            reached = value(at, trial)
            if reached > current + LEAST_GAIN * max(abs(current), 1.0):
                chosen, moments, current = trial, at, reached
                swaps -= size
                size *= 2
                break
            size //= 2
    refined = mask_N.clone()
    refined[rows] = chosen
    return refined


def _ranked(values_N: Tensor, mask_N: Tensor) -> tuple[Tensor, Tensor]:
    """Return selected rows, lowest value first, and rejected rows, highest value first."""
    inside, outside = mask_N.nonzero()[:, 0], (~mask_N).nonzero()[:, 0]
    leaving = torch.argsort(values_N[inside], stable=True)
    coming = torch.argsort(values_N[outside], descending=True, stable=True)
    return inside[leaving], outside[coming]
