"""Facility location for the `expected` estimator: lazy greedy over near neighbours.

Facility location is submodular: gains only fall, so a document whose last known gain is too small
need not be evaluated again (lazy greedy, Minoux 1978). A shard whose similarities fit in the
working set is one block, and its greedy run is exact.

A larger shard is cut into blocks of similar documents. The gain of a document depends on its near
neighbours alone, so each document looks for its nearest candidates in its own block and the blocks
most similar to it, and one greedy run over the whole shard uses only these similarities. If few
documents are selected, the candidates are those with the largest gains of a greedy run within each
block; otherwise all. The cost per document does not grow with the shard.

Moment terms enter by their gradient at the present moments. That is exact for linear terms such as
quality; for others, rounds repeat at the moments of the mask found so far.
"""

from __future__ import annotations

import heapq

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from datamask.learning.data import (
    Problem,
    ShardData,
    highest_order,
    mixed_moments,
    moments_of,
    raw_values,
    scaled_moments,
)
from datamask.learning.moment_gradient import along_all, mean_along, slopes
from datamask.learning.partition import similar_blocks
from datamask.learning.policy import top_mask
from datamask.learning.resuming import Curve, State
from datamask.objectives.facility_location import FacilityLocation

# Largest block if the shard is not one block (docs/log.md#coverage).
BLOCK = 4096
# Documents whose gains are evaluated together (docs/log.md#coverage).
AT_ONCE = 32
# Most that a block may select, in multiples of its even share (docs/log.md#coverage).
MOST_SHARE = 3
# Parts in which the similarities of a block are computed, and processed where copies are needed.
# See docs/log.md#coverage.
PARTS = 8
# Candidates for each selected document, neighbours of a document, and blocks in which it looks for
# them (docs/log.md#coverage).
CANDIDATES, NEIGHBOURS, NEAR_BLOCKS = 10, 32, 8
# Rounds if a term next to facility location is not linear (docs/log.md#coverage).
ROUNDS = 4


def learn(problem: Problem, logits_N: Tensor, curve: Curve) -> tuple[Tensor, int, str]:
    """Learn logits whose top S cover the shard; returns them, the rounds, and `complete`.

    The objective is facility location and any moment terms; 0 < S < N. The initial logits are for
    the first point of the curve, which has one for every round, over all blocks. What is kept to
    resume are the neighbours, or the gains of rounds and blocks.
    """
    data, objective, num_selected = problem.data, problem.objective, problem.num_selected
    terms = objective.active
    factor = sum(t.factor for t in terms if isinstance(t.objective, FacilityLocation))
    order = highest_order(terms)
    # The gains of each round that was begun, and the number of blocks done in the last one.
    history = [torch.from_numpy(gains).to(data.device) for gains in curve.state.get("gains", ())]
    blocks_done = int(curve.state.get("blocks", 0))
    resumed = len(history)
    blocks = similar_blocks(data, _largest_block(data))
    ones = torch.ones_like(logits_N)
    moments = scaled_moments(moments_of(data, ones, order), num_selected)
    rounds = ROUNDS if order > 0 else 1
    all_compete = CANDIDATES * num_selected >= data.num_documents
    graph = None
    if len(blocks) > 1 and all_compete:
        graph = nearest_candidates(data, blocks, ones > 0, curve)
    if not resumed:
        curve.record(0, raw_values(objective.terms, data, top_mask(logits_N, num_selected)))
    best, best_value = logits_N, -torch.inf

    def state() -> State:
        gains = np.stack([gains.cpu().numpy() for gains in history])
        return {"gains": gains, "blocks": np.asarray(blocks_done)}

    for step in range(1, rounds + 1):
        slope = slopes(terms, moments)
        linear_gain = along_all(slope, data) - mean_along(slope, moments)
        if step > resumed:
            history.append(torch.zeros_like(logits_N))
            blocks_done = 0
        gains = history[step - 1]
        for rows in blocks[blocks_done:] if step >= resumed and graph is None else []:
            gains[rows] = _block_gains(data, rows, linear_gain[rows], factor, num_selected)
            blocks_done += 1
            curve.keep(state)
        if len(blocks) > 1:
            candidates = top_mask(gains, min(CANDIDATES * num_selected, len(gains)))
            similarity = nearest_candidates(data, blocks, candidates) if graph is None else graph
            gains = sparse_greedy_gains(similarity, linear_gain, factor / len(gains), num_selected)
        mask = top_mask(gains, num_selected)
        raw = raw_values(objective.terms, data, mask)
        if step >= resumed:
            curve.record(step, raw)
        if objective.join(raw) > best_value:
            best, best_value = gains, objective.join(raw)
        moments = mixed_moments(moments, moments_of(data, mask.float(), order), 1 / step)
    return _standardised(best, num_selected), rounds, "complete"


def _block_gains(
    data: ShardData, rows: Tensor, linear_gain_B: Tensor, factor: float, num_selected: int
) -> Tensor:
    depth = num_selected
    if len(rows) < data.num_documents:
        depth = MOST_SHARE * -(-num_selected * len(rows) // data.num_documents)
    return greedy_gains(_similarity(data, rows), linear_gain_B, factor / data.num_documents, depth)


def greedy_gains(similarity_BB: Tensor, linear_gain_B: Tensor, weight: float, depth: int) -> Tensor:
    """The gain of each document when greedy took it, or an upper bound of it; shape B.

    The gains never rise in the order in which documents were taken, and no document that was not
    taken has a larger one, so the documents with the largest gains are those taken first.

    Args:
        similarity_BB: cosines within a block, symmetric.
        linear_gain_B: the gain of each document apart from its coverage.
        weight: of the sum over documents of the similarity to the nearest taken one. Greedy has no
            guarantee if it is negative.
        depth: most documents to take.
    """
    covered = torch.full_like(linear_gain_B, -1.0)
    bound = linear_gain_B + weight * (similarity_BB.sum(1) + len(linear_gain_B))
    gains = bound.clone()
    taken = 0
    ceiling = torch.inf
    while taken < min(depth, len(linear_gain_B)):
        number = min(AT_ONCE + 1, len(bound))
        values, rows = bound.topk(number)
        looked = rows[: max(1, number - 1)]
        added = similarity_BB[looked].sub_(covered).clamp_(min=0).sum(1)
        fresh = linear_gain_B[looked] + weight * added
        fresh[values[: len(looked)] == -torch.inf] = -torch.inf  # taken already
        bound[looked] = fresh
        at = int(fresh.argmax())
        rest = float(values[-1]) if number > 1 and len(looked) < number else -torch.inf
        if float(fresh[at]) < rest:
            continue
        row = looked[at]
        # Rounding can raise a sum slightly; the order must not depend on it.
        ceiling = min(ceiling, float(fresh[at]))
        gains[row] = ceiling
        bound[row] = -torch.inf
        covered = torch.maximum(covered, similarity_BB[row])
        taken += 1
    left = bound > -torch.inf
    gains[left] = bound[left].clamp(max=ceiling)
    return gains


def nearest_candidates(
    data: ShardData, blocks: list[Tensor], candidates_N: Tensor, curve: Curve | None = None
) -> sparse.csc_array:
    """How much more similar each document is to its nearest candidates than to the last of them.

    `NEIGHBOURS` candidates, from the `NEAR_BLOCKS` blocks whose centres are nearest. The shape is
    (N, N), documents with candidates; what is stored is above 0. If there are too few candidates,
    it is the similarity plus 1. A curve keeps what was found.
    """
    centres = torch.stack([data.rows(rows).mean(0) for rows in blocks])
    centres = torch.nn.functional.normalize(centres, dim=1)
    near = (centres @ centres.T).topk(min(NEAR_BLOCKS, len(blocks))).indices.cpu().tolist()
    shape = (data.num_documents, NEIGHBOURS)
    similarity, columns = np.full(shape, -1, np.float32), np.zeros(shape, np.int32)
    kept = curve.state if curve else {}
    searched = int(kept.get("searched", 0))
    if searched:
        similarity[:], columns[:] = kept["similarity"], kept["columns"]

    def state() -> State:
        lists = {"similarity": similarity, "columns": columns}
        return lists | {"searched": np.asarray(searched)}

    for rows, others in list(zip(blocks, near, strict=True))[searched:]:
        found = torch.cat([blocks[other] for other in others])
        found = found[candidates_N[found]]
        features = data.rows(found)
        at_once = max(1, data.working_set_bytes // (32 * max(1, len(found))))
        for part in torch.split(rows, at_once):
            product = data.product(data.rows(part), features.T)
            values, places = product.topk(min(NEIGHBOURS, len(found)), dim=1)
            at, width = part.cpu().numpy(), values.shape[1]
            similarity[at, :width], columns[at, :width] = values.cpu(), found[places].cpu()
        searched += 1
        if curve:
            curve.keep(state)
    similarity -= similarity[:, -1:]
    starts = np.arange(0, similarity.size + 1, NEIGHBOURS)
    lists = sparse.csr_array((similarity.ravel(), columns.ravel(), starts), (shape[0],) * 2)
    # Zeros stand for no candidate, in column 0, where a document may also have a neighbour.
    lists.eliminate_zeros()
    return lists.tocsc()


def sparse_greedy_gains(
    similarity: sparse.csc_array, linear_gain_N: Tensor, weight: float, num_selected: int
) -> Tensor:
    """As `greedy_gains`, from the similarities of `nearest_candidates` alone; others count as 0."""
    linear = linear_gain_N.cpu().numpy().astype(np.float64)
    values, rows, starts = similarity.data, similarity.indices, similarity.indptr
    columns = np.repeat(np.arange(len(linear), dtype=np.int32), np.diff(starts))
    covered = np.zeros(len(linear), np.float32)

    def all_gains() -> np.ndarray:
        added = np.maximum(values - covered[rows], 0)
        return linear + weight * np.bincount(columns, added, len(linear))

    bounds = all_gains()
    heap = list(zip((-bounds).tolist(), range(len(bounds)), strict=True))
    heapq.heapify(heap)
    taken: dict[int, float] = {}
    ceiling = np.inf
    while len(taken) < num_selected:
        _, column = heapq.heappop(heap)
        part = slice(starts[column], starts[column + 1])
        near, excess = rows[part], values[part]
        added = np.maximum(excess - covered[near], 0).sum(dtype=np.float64)
        gain = float(linear[column] + weight * added)
        if heap and gain < -heap[0][0]:
            heapq.heappush(heap, (-gain, column))
            continue
        taken[column] = ceiling = min(ceiling, gain)
        covered[near] = np.maximum(covered[near], excess)
    gains = np.minimum(all_gains(), ceiling)
    gains[list(taken)] = list(taken.values())
    return torch.from_numpy(gains).to(linear_gain_N)


def marginal_coverage(similarity_RC: Tensor, base_R: Tensor | float, chosen_C: Tensor) -> Tensor:
    """Gain of each candidate that is not chosen, loss of each chosen one; sums over R, shape C.

    Args:
        similarity_RC: cosines of documents with candidates.
        base_R: the largest cosine of each document with the other selected documents; −1 if none.
        chosen_C: bool.
    """
    inside = torch.where(chosen_C, similarity_RC, -2.0)
    base = torch.full_like(inside[:, :1], -1.0)
    base[:, 0] = base_R
    top = torch.cat([inside, base], 1).topk(2, dim=1)
    best, second = top.values[:, 0], top.values[:, 1]
    gain = (similarity_RC - best[:, None]).clamp(min=0).sum(0)
    loss = torch.zeros(len(chosen_C) + 1, device=gain.device)
    loss.index_add_(0, top.indices[:, 0], best - second)
    return torch.where(chosen_C, loss[:-1], gain)


def coverage_gains(data: ShardData, mask_N: Tensor) -> Tensor:
    """Marginal gain in the mean similarity to the nearest selected document, shape N.

    It is computed within blocks of similar documents, as in learning.
    """
    gains = torch.zeros_like(data.quality_N)
    for rows in similar_blocks(data, _largest_block(data)):
        similarity = _similarity(data, rows)
        for part in torch.split(similarity, max(1, len(rows) // PARTS)):
            gains[rows] += marginal_coverage(part, -1.0, mask_N[rows])
    return gains / data.num_documents


def _largest_block(data: ShardData) -> int:
    # One block, which is exact, if its similarities take at most half of the working set.
    whole = int((data.working_set_bytes / 8) ** 0.5)
    return data.num_documents if data.num_documents <= whole else max(2, min(BLOCK, whole))


def _similarity(data: ShardData, rows: Tensor) -> Tensor:
    """Cosines of some documents with each other; about half of the products are computed."""
    parts = torch.split(rows, min(data.chunk_rows, -(-len(rows) // PARTS)))
    features = [data.rows(part) for part in parts]
    similarity = torch.empty(len(rows), len(rows), device=data.device)
    start = 0
    for at, one in enumerate(features):
        stop = end = start + len(one)
        similarity[start:stop, start:stop] = data.product(one, one.T)
        for other in features[at + 1 :]:
            end += len(other)
            similarity[start:stop, end - len(other) : end] = data.product(one, other.T)
        similarity[stop:, start:stop] = similarity[start:stop, stop:].T
        start = stop
    return similarity


def _standardised(gains_N: Tensor, num_selected: int) -> Tensor:
    """Gains less the threshold, in units of their median distance from it.

    The first documents of a block have gains far above all others and would dominate a deviation.
    """
    threshold = gains_N.topk(num_selected).values[-1]
    distance = (gains_N - threshold).abs()
    unit = distance[distance > 0].median() if bool((distance > 0).any()) else distance.max() + 1
    return (gains_N - threshold) / unit
