"""Facility location for the `expected` estimator: lazy greedy over near neighbours.

Facility location is submodular: gains only fall, so a document whose last known gain is too small
need not be evaluated again (lazy greedy, Minoux 1978). Gains are computed from a list of near
neighbours for each document, as if each were covered from the start as well as by its last
neighbour. If all documents are neighbours, as in a small shard, greedy is exact.

In a group of near-copies larger than a list, the last neighbour is a copy too, so covering the
group would seem to gain nothing. Therefore greedy runs again from a lower start: what the third
nearest document in the mask of the first run covers, where that is less. Lists do not say what
covers a document below its last neighbour, so for these documents it is computed again whenever
many documents have been taken since.

Documents are compared along the principal directions of the shard first, and exactly only with
those that seem most similar. This misses some neighbours and hardly any gain.

A large shard is cut into blocks of similar documents, and a document looks for its neighbours, and
for what covers it, in its own block and the blocks most similar to it. The cost per document hardly
grows with the shard.

Moment terms enter by their gradient at the present moments. That is exact for linear terms such as
quality; for others, there are more rounds, each at the moments of the mask found so far.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

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
from datamask.learning.moment_gradient import along, mean_along, slopes
from datamask.learning.partition import centres, projected, similar_blocks
from datamask.learning.policy import top_mask
from datamask.learning.resuming import Curve, State
from datamask.learning.sparse_products import some_products
from datamask.objectives.facility_location import FacilityLocation

# Documents of a shard that is one block, and about those of a block of another; those among which a
# document looks for neighbours, and those whose gains it counts for (docs/log.md#coverage).
WHOLE, BLOCK, NEAR, COUNTED = 12288, 1024, 20480, 4096
# Shortest list of neighbours, and longest if few are selected, so that LISTED_SELECTED of a list
# are; most entries of all such lists. A shard of at most EXACT documents lists all.
# See docs/log.md#coverage.
NEIGHBOURS, MOST_NEIGHBOURS, LISTED_SELECTED, MOST_ENTRIES, EXACT = 32, 128, 3, 2**25, 512
# Directions along which documents are compared first; how many times as many as are listed are then
# compared exactly; places for each of these (docs/log.md#coverage).
DIRECTIONS, CANDIDATES, PLACES = 128, 2, 16
# What covers documents is computed again when this share of those taken is new.
# See docs/log.md#coverage.
SHARE_ADDED = 0.5
# Most documents of which cosines are computed at once, and what numbers of them are rounded up to.
# See docs/log.md#coverage.
ROWS_AT_ONCE, PADDED = 512, 128
# Rounds, and rounds if a term next to facility location is not linear; which of the selected
# documents near a document covers it at the start of the next one (docs/log.md#coverage).
ROUNDS, ROUNDS_OF_MOMENTS, RANK = 2, 4, 3


def learn(problem: Problem, logits_N: Tensor, curve: Curve) -> tuple[Tensor, int, str]:
    """Learn logits whose top S cover the shard; returns them, the rounds, and `complete`.

    The objective is facility location and any moment terms; 0 < S < N. The initial logits are for
    the first point of the curve, which has one for every round. What is kept to resume are the
    neighbours.
    """
    data, objective, num_selected = problem.data, problem.objective, problem.num_selected
    terms = objective.active
    factor = sum(t.factor for t in terms if isinstance(t.objective, FacilityLocation))
    order = highest_order(terms)
    blocks = Blocks.of(data, NEAR)
    neighbours, last = blocks.neighbours(num_selected, curve)
    curve.record(0, raw_values(objective.terms, data, top_mask(logits_N, num_selected)))
    ones = torch.ones_like(logits_N)
    moments = scaled_moments(moments_of(data, ones, order), num_selected)
    covered = last

    def cover(mask_N: Tensor, covered_N: Tensor) -> Tensor:
        # No document that is not listed covers more than the last one that is.
        return blocks.covered(mask_N, covered_N < last)

    rounds = ROUNDS_OF_MOMENTS if order > 0 else ROUNDS
    best, best_value = logits_N, -torch.inf
    for step in range(1, rounds + 1):
        slope = slopes(terms, moments)
        linear_gain = along(slope, data) - mean_along(slope, moments)
        weight = factor / data.num_documents
        gains = greedy_gains(neighbours, covered, cover, linear_gain, weight, num_selected)
        mask = top_mask(gains, num_selected)
        raw = raw_values(objective.terms, data, mask)
        curve.record(step, raw)
        if objective.join(raw) > best_value:
            best, best_value = gains, objective.join(raw)
        if step < rounds:
            moments = mixed_moments(moments, moments_of(data, mask.float(), order), 1 / step)
            # Elsewhere, all RANK are listed, so the last one covers no more than they do.
            hidden = selected_neighbours(neighbours, mask) < RANK
            covered = torch.where(hidden, blocks.covered(mask, hidden, RANK), last)
            covered = torch.minimum(covered, last)
    return _standardised(best, num_selected), rounds, "complete"


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of similar documents.

    Args:
        data: the shard.
        shadow: the shard along its principal directions, by which it is cut and searched.
        rows: of each block.
        near: for each block, those most similar to it, itself first.
        most: documents in near blocks that are searched, in the order of the blocks; at least one
            block.
    """

    data: ShardData
    shadow: ShardData
    rows: list[Tensor]
    near: list[list[int]]
    most: int

    @classmethod
    def of(cls, data: ShardData, most: int) -> Blocks:
        """The blocks of a shard, with *most* near documents each."""
        size = _block_size(data)
        shadow = projected(data, DIRECTIONS)
        blocks = similar_blocks(shadow.exact, size)
        directions = centres(shadow, blocks)
        # Twice as many as needed on average: many blocks are smaller.
        number = min(-(-2 * most // size), len(blocks))
        near = (directions @ directions.T).fill_diagonal_(2).topk(number).indices
        return cls(data, shadow, blocks, near.cpu().tolist(), max(most, *map(len, blocks)))

    def columns(self, block: int) -> Tensor:
        """The rows of the documents that those of a block are compared with."""
        return torch.cat([self.rows[other] for other in self.near[block]])[: self.most]

    def similarities(
        self, data: ShardData, of_N: Tensor, among_N: Tensor, first: int = 0
    ) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
        """Cosines of some documents with some of those in near blocks, from a first block.

        The documents are masks, their vectors those of *data*. Yields block, rows (B), columns (C)
        and cosines (B x C, valid until the next ones), where there are any; of vectors in int8,
        multiples of cosines.
        """
        # A large matrix can take longer to allocate than to compute.
        memory = data.quality_N.new_empty(0)
        for block in range(first, len(self.rows)):
            inside = self.rows[block][of_N[self.rows[block]]]
            near = self.columns(block)
            columns = near[among_N[near]]
            if not len(inside) or not len(columns):
                continue
            features = data.rows(columns)
            if len(columns) < len(near):
                features = _padded(features)
            features = data.narrow(features.T)
            for rows in _parts(data, inside, len(columns)):
                part = _padded(data.rows(rows))
                shape = (len(part), features.shape[1])
                if memory.numel() < prod(shape):
                    memory = memory.new_empty(prod(shape))
                cosines = data.product(part, features, memory[: prod(shape)].view(shape))
                yield block, rows, columns, cosines[: len(rows), : len(columns)]

    def neighbours(self, num_selected: int, curve: Curve) -> tuple[sparse.csc_array, Tensor]:
        """Cosines of documents with their nearest ones, and with the last of these, shape N.

        The shape of the first is (N, N), documents with neighbours. The curve keeps what was found.
        """
        number = self.data.num_documents
        fewest = min(len(self.columns(block)) for block in range(len(self.rows)))
        length = min(MOST_NEIGHBOURS, LISTED_SELECTED * number // num_selected)
        length = max(NEIGHBOURS, EXACT**2 // number, min(length, MOST_ENTRIES // number))
        length = min(length, fewest)
        similarity = np.empty((number, length), np.float32)
        columns = np.empty((number, length), np.int32)
        searched = int(curve.state.get("searched", 0))
        if searched:
            similarity[:], columns[:] = curve.state["similarity"], curve.state["columns"]

        def state() -> State:
            lists = {"similarity": similarity, "columns": columns}
            return lists | {"searched": np.asarray(searched)}

        everything = torch.ones_like(self.data.quality_N, dtype=torch.bool)
        read = -1
        for block, rows, others, products in self.similarities(
            self.shadow, everything, everything, searched
        ):
            if block > searched:
                searched = block
                curve.keep(state)
            if block > read:
                read, features = block, self.data.rows(others)
            # Along these directions, a document need not be most similar to itself.
            own = torch.searchsorted(self.rows[block], rows)
            products[torch.arange(len(rows), device=rows.device), own] = 2**24  # above all others
            places = _highest(products, min(CANDIDATES * length, len(others)))
            cosines = some_products(self.data.rows(rows), features, places)
            values, best = cosines.topk(length, dim=1)
            at = rows.cpu().numpy()
            similarity[at], columns[at] = values.cpu(), others[places.gather(1, best)].cpu()
        starts = np.arange(0, similarity.size + 1, length)
        lists = (similarity.ravel(), columns.ravel(), starts)
        last = torch.from_numpy(similarity[:, -1].copy()).to(self.data.device)
        return sparse.csr_array(lists, (number, number)).tocsc(), last

    def covered(self, mask_N: Tensor, hidden_N: Tensor, rank: int = 1) -> Tensor:
        """The cosine of documents to the selected one of a *rank* in near blocks, or -1; shape N.

        It is computed for documents in *hidden_N*; it is -1 for the others.
        """
        covered = torch.full_like(self.data.quality_N, -1.0)
        for _, rows, columns, cosines in self.similarities(self.data, hidden_N, mask_N):
            if rank == 1:
                covered[rows] = cosines.amax(1)
            elif len(columns) >= rank:
                covered[rows] = cosines.topk(rank, dim=1).values[:, -1]
        return covered


def greedy_gains(
    neighbours: sparse.csc_array,
    covered_N: Tensor,
    covered_by: Callable[[Tensor, Tensor], Tensor],
    linear_gain_N: Tensor,
    weight: float,
    num_selected: int,
) -> Tensor:
    """The gain of each document when greedy took it, or an upper bound of it; shape N.

    The gains never rise in the order in which documents were taken, and no document that was not
    taken has a larger one, so the documents with the largest gains are those taken first.

    Args:
        neighbours: cosines of documents with their neighbours, stored by column.
        covered_N: the cosine that each document is covered by from the start.
        covered_by: the cosine of each document to the nearest one in a mask, given the cosine that
            covers it already, shapes N; at least of those for which neighbours do not tell it.
        linear_gain_N: the gain of each document apart from its coverage.
        weight: of the sum over documents of the cosine to the nearest taken one. Greedy has no
            guarantee if it is negative.
        num_selected: most documents to take.
    """
    linear = linear_gain_N.cpu().numpy().astype(np.float64)
    values, rows, starts = neighbours.data, neighbours.indices, neighbours.indptr
    columns = np.repeat(np.arange(len(linear), dtype=np.int32), np.diff(starts))
    covered = covered_N.cpu().numpy().copy()

    def all_gains() -> np.ndarray:
        added = np.maximum(values - covered[rows], 0)
        return linear + weight * np.bincount(columns, added, len(linear))

    heap = list(zip((-all_gains()).tolist(), range(len(linear)), strict=True))
    heapq.heapify(heap)
    taken: dict[int, float] = {}
    added: list[int] = []
    ceiling = np.inf
    while heap and len(taken) < num_selected:
        _, column = heapq.heappop(heap)
        part = slice(starts[column], starts[column + 1])
        near, cosines = rows[part], values[part]
        more = np.maximum(cosines - covered[near], 0).sum(dtype=np.float64)
        gain = float(linear[column] + weight * more)
        if heap and gain < -heap[0][0]:
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


def selected_neighbours(neighbours: sparse.csc_array, mask_N: Tensor) -> Tensor:
    """How many of each document's neighbours are selected; shape N."""
    selected = neighbours[:, mask_N.cpu().numpy()].indices
    number = np.bincount(selected, minlength=len(mask_N))
    return torch.from_numpy(number).to(mask_N.device)


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

    It is computed within blocks of similar documents and those most similar to them.
    """
    gains, everything = torch.zeros_like(data.quality_N), torch.ones_like(mask_N)
    blocks = Blocks.of(data, COUNTED)
    for _, _, columns, cosines in blocks.similarities(data, everything, everything):
        gains[columns] += marginal_coverage(cosines, -1.0, mask_N[columns])
    return gains / data.num_documents


def _highest(values_BC: Tensor, count: int) -> Tensor:
    """Columns of nearly the highest values of each row, B x count.

    `topk` of all columns would take as long as the products. Columns are cut into groups, and of
    those in the same place of their groups only the highest is found.
    """
    number = values_BC.shape[1]
    width = min(number, PLACES * count)
    starts = range(width, number, width)
    highest = values_BC[:, :width].clone()
    for start in starts:
        group = values_BC[:, start : start + width]
        part = highest[:, : group.shape[1]]
        torch.maximum(part, group, out=part)
    values, places = highest.topk(count, dim=1)
    columns = places
    for start in starts:
        # The last group lacks some places.
        other = torch.where(places + start < number, places + start, places)
        columns = torch.where(values_BC.gather(1, other) == values, other, columns)
    return columns


def _parts(data: ShardData, rows: Tensor, num_columns: int) -> tuple[Tensor, ...]:
    """Rows in parts whose products with so many columns take an eighth of the working set."""
    most = data.working_set_bytes // (32 * num_columns)
    return torch.split(rows, max(1, min(ROWS_AT_ONCE, most)))


def _padded(features_BD: Tensor) -> Tensor:
    """With rows of zeros: oneDNN keeps code in memory for every size of a product."""
    missing = -len(features_BD) % PADDED
    return torch.nn.functional.pad(features_BD, (0, 0, 0, missing)) if missing else features_BD


def _block_size(data: ShardData) -> int:
    return data.num_documents if data.num_documents <= WHOLE else BLOCK


def _standardised(gains_N: Tensor, num_selected: int) -> Tensor:
    """Gains less the threshold, in units of their median distance from it.

    The first documents of a block have gains far above all others and would dominate a deviation.
    """
    threshold = gains_N.topk(num_selected).values[-1]
    distance = (gains_N - threshold).abs()
    unit = distance[distance > 0].median() if bool((distance > 0).any()) else distance.max() + 1
    return (gains_N - threshold) / unit
