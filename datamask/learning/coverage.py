"""Facility location for the `expected` estimator: lazy greedy over near neighbours.

Gains only fall, so a document whose last known gain is too small need not be evaluated again (lazy
greedy, Minoux 1978). Gains are computed from a list of near neighbours for each document
(`learning.neighbours`), as if each document were covered from the start as well as by its last
neighbour. If all documents are neighbours, as in a small shard, greedy is exact.

In a group of near-copies larger than a list, the last neighbour is a copy too, so covering the
group would seem to gain nothing. Therefore greedy runs again from a lower start: the cosine with
the third nearest document in the mask of the first run, where that is less. Lists do not say what
covers a document below its last neighbour: greedy computes that again after taking many documents.

Moment terms enter by their gradient at the present moments. For terms that are not linear there are
more rounds, each at the moments of the mask reached so far.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from datamask.learning.data import highest_order, moments_of, raw_values
from datamask.learning.moment_gradient import along, mean_along, slopes
from datamask.learning.neighbours import Neighbours
from datamask.learning.policy import top_mask
from datamask.learning.problem import Curve, Problem
from datamask.objectives.weighted import coverage_factor

SHARE_ADDED = 0.5
"""Cosines that cover documents are computed again when this fraction of the taken documents is new
(docs/log.md#coverage)."""

ENTERING = 256
"""Number of documents that enter the heap together, with gains that are up to date
(docs/log.md#coverage)."""

ROUNDS, ROUNDS_OF_MOMENTS = 2, 4
"""Number of rounds, and number if a term next to facility location is not linear
(docs/log.md#coverage)."""

RANK = 3
"""Rank, among the selected documents near a document, of the one that covers it at the start of the
next round (docs/log.md#coverage)."""


def learn(problem: Problem, neighbours: Neighbours, curve: Curve) -> tuple[Tensor, int, str]:
    """Learn logits whose top S (0 < S < N) cover the shard; return logits, rounds and `complete`.

    The curve has a point for every round. A logit is the gain of a document when greedy took it, or
    an upper bound of it.
    """
    data, objective, num_selected = problem.data, problem.objective, problem.num_selected
    terms = objective.active
    factor = coverage_factor(terms)
    order, last = highest_order(terms), neighbours.last_N
    moments = moments_of(data, torch.ones_like(data.quality_N), order)
    moments, covered = moments.scaled(num_selected), last

    def cover(mask_N: Tensor, covered_N: Tensor) -> Tensor:
        # No document outside a list covers more than the last one in it.
        return neighbours.covered(mask_N, covered_N < last)

    rounds = ROUNDS_OF_MOMENTS if order > 0 else ROUNDS
    best_value = -torch.inf
    for step in range(1, rounds + 1):
        slope = slopes(terms, moments)
        linear_gain = along(slope, data) - mean_along(slope, moments)
        weight = factor / data.num_documents
        gains = greedy_gains(neighbours.cosines, covered, cover, linear_gain, weight, num_selected)
        mask = top_mask(gains, num_selected)
        raw = raw_values(objective.terms, data, mask)
        curve.record(step, raw)
        if objective.join(raw) > best_value:
            best, best_value = gains, objective.join(raw)
        if step < rounds:
            moments = moments.mixed(moments_of(data, mask.float(), order), 1 / step)
            # Elsewhere, all RANK are listed, so the last one covers no more than they do.
            hidden = neighbours.selected(mask) < RANK
            if order <= 0 and not bool(hidden.any()):
                break  # The next round would be the same.
            covered = torch.where(hidden, neighbours.covered(mask, hidden, RANK), last)
            covered = torch.minimum(covered, last)
    return best, step, "complete"


def greedy_gains(
    neighbours: sparse.csc_array,
    covered_N: Tensor,
    covered_by: Callable[[Tensor, Tensor], Tensor],
    linear_gain_N: Tensor,
    weight: float,
    num_selected: int,
) -> Tensor:
    """Return the gain of each document when greedy took it, or an upper bound of it; shape N.

    Greedy takes the documents with the largest gains, in this order.

    Args:
        neighbours: cosines of documents with their neighbours, stored by column.
        covered_N: the cosine that covers each document from the start.
        covered_by: computes the cosine of each document with the nearest document of a mask, given
            the cosine that covers it already, shapes N; at least where neighbours do not give it.
        linear_gain_N: the gain of each document apart from its coverage.
        weight: of the sum of cosines to the nearest taken document.
        num_selected: maximum number of documents to take.
    """
    linear = linear_gain_N.cpu().numpy().astype(np.float64)
    values, rows, starts = neighbours.data, neighbours.indices, neighbours.indptr
    sizes = np.diff(starts)
    columns = np.repeat(np.arange(len(linear), dtype=np.int32), sizes)
    covered = covered_N.cpu().numpy().copy()

    def all_gains() -> np.ndarray:
        added = np.maximum(values - covered[rows], 0)
        return linear + weight * np.bincount(columns, added, len(linear))

    def gains_of(some: np.ndarray) -> np.ndarray:
        ends = np.cumsum(sizes[some])
        begins = ends - sizes[some]
        listed = np.arange(ends[-1]) + np.repeat(starts[some] - begins, sizes[some])
        added = np.maximum(values[listed] - covered[rows[listed]], 0)
        # Each document is in its own list, so no sum is empty.
        covers: np.ndarray = np.add.reduceat(added, begins, dtype=np.float64)
        gains: np.ndarray = linear[some] + weight * covers
        return gains

    first = all_gains()
    order = np.argsort(-first, kind="stable")
    bounds = np.append(first[order], -np.inf)
    entered = 0
    heap: list[tuple[float, int]] = []
    taken: dict[int, float] = {}
    added: list[int] = []
    ceiling = np.inf
    while len(taken) < min(num_selected, len(order)):
        # A document enters when its first gain might be the largest now. Most have fallen by then.
        while entered < len(order) and (not heap or bounds[entered] >= -heap[0][0]):
            some = order[entered : entered + ENTERING]
            present = gains_of(some) if taken else first[some]
            for entry in zip((-present).tolist(), some.tolist(), strict=True):
                heapq.heappush(heap, entry)
            entered += len(some)
        _, column = heapq.heappop(heap)
        part = slice(starts[column], starts[column + 1])
        near, cosines = rows[part], values[part]
        more = np.maximum(cosines - covered[near], 0).sum(dtype=np.float64)
        gain = float(linear[column] + weight * more)
        if gain < max(bounds[entered], -heap[0][0] if heap else -np.inf):
            heapq.heappush(heap, (-gain, column))
            continue
        # Rounding can raise a sum slightly; the order must not depend on it.
        taken[column] = ceiling = min(ceiling, gain)
        covered[near] = np.maximum(covered[near], cosines)
        added.append(column)
        if len(added) >= SHARE_ADDED * len(taken):
            mask = torch.zeros(len(linear), dtype=torch.bool)
            mask[added] = True
            device = linear_gain_N.device
            by_added = covered_by(mask.to(device), torch.from_numpy(covered).to(device))
            covered = np.maximum(covered, by_added.cpu().numpy())
            added = []
    gains = np.minimum(all_gains(), ceiling)
    gains[list(taken)] = list(taken.values())
    return torch.from_numpy(gains).to(linear_gain_N)
