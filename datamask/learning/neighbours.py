"""Search near neighbours of the documents of a shard, which facility location learns from.

A large shard is cut into blocks of similar documents. A document looks for its neighbours, and for
selected documents that cover it, in its own block and the blocks most similar to it. The cost per
document hardly grows with the shard. Documents are compared along the principal directions of the
shard first, and exactly only with those that seem most similar, which misses some neighbours and
hardly any gain.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from datamask.learning.data import Progress, ShardData
from datamask.learning.partition import centres, projected, similar_blocks

WHOLE, BLOCK = 12_288, 1024
"""Documents of a shard that is one block; blocks of a larger shard have about BLOCK documents
(docs/log.md#coverage)."""

NEAR = 20_480
"""Number of documents among which a document looks for neighbours (docs/log.md#coverage)."""

NEIGHBOURS, MOST_NEIGHBOURS, LISTED_SELECTED = 32, 128, 3
"""Shortest list of neighbours, and longest if few are selected: lists grow until LISTED_SELECTED of
their documents are selected (docs/log.md#coverage)."""

MOST_ENTRIES, EXACT = 2**25, 512
"""Maximum number of entries of all lists longer than the shortest; number of documents in a shard
that lists all (docs/log.md#coverage)."""

DIRECTIONS, CANDIDATES = 128, 2
"""Number of directions along which documents are compared first; and ratio of documents that are
then compared exactly to documents that are listed (docs/log.md#coverage)."""

PLACES = 16
"""Number of columns for each of these candidates (`_highest`, docs/log.md#coverage)."""

TILE = 1024
"""Rows and columns of a tile of all cosines, and maximum number of documents that are compared with
near blocks at once (docs/log.md#coverage)."""

ROWS_AT_ONCE = 128
"""Maximum number of documents whose cosines are computed at once (docs/log.md#coverage)."""

with warnings.catch_warnings():
    # torch warns once per process that sparse matrices are in beta.
    warnings.simplefilter("ignore")
    torch.zeros(1, 1).to_sparse_csr()


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of similar documents.

    Args:
        data: the shard.
        shadow: the shard along its principal directions, used to cut and search it.
        rows: of each block.
        near: for each block, the most similar blocks, itself first.
        most: maximum number of documents that are searched in near blocks; at least one block is.
    """

    data: ShardData
    shadow: ShardData
    rows: list[Tensor]
    near: list[list[int]]
    most: int

    @classmethod
    def of(cls, data: ShardData) -> Blocks:
        """Cut a shard into blocks; products have full precision."""
        number = data.num_documents
        size = number if number <= WHOLE else BLOCK
        shadow = data.exact if size == number else projected(data.exact, DIRECTIONS)
        blocks = similar_blocks(shadow, size)
        directions = centres(shadow, blocks)
        # Twice as many as needed on average: many blocks are smaller.
        count = min(-(-2 * NEAR // size), len(blocks))
        near = (directions @ directions.T).fill_diagonal_(2).topk(count).indices
        most = max(NEAR, *map(len, blocks))
        return cls(data.exact, shadow, blocks, near.cpu().tolist(), most)

    def columns(self, block: int) -> Tensor:
        """Return the rows of the documents with which the documents of a block are compared."""
        return torch.cat([self.rows[other] for other in self.near[block]])[: self.most]

    def similarities(
        self, of_N: Tensor, among_N: Tensor
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield cosines of documents *of_N* with documents *among_N* in near blocks.

        Both are masks. Yields rows (B), columns (C) and cosines (B x C, valid until the next ones),
        where there are any.
        """
        data = self.data
        if not of_N.any():
            return  # In a small shard, for example, whose lists have all documents.
        # A large matrix can take longer to allocate than to compute.
        memory = data.quality_N.new_empty(0)
        held = data.quality_N.new_empty(min(self.most, int(among_N.sum())), data.dimension)
        for block, documents in enumerate(self.rows):
            inside, near = documents[of_N[documents]], self.columns(block)
            columns = near[among_N[near]]
            if not len(inside) or not len(columns):
                continue
            features = data.rows(columns, memory=held).T
            # Products take at most an eighth of the working set.
            most = max(1, min(ROWS_AT_ONCE, data.working_set_bytes // (32 * len(columns))))
            for rows in torch.split(inside, most):
                shape = (len(rows), len(columns))
                if memory.numel() < prod(shape):
                    memory = memory.new_empty(prod(shape))
                cosines = memory[: prod(shape)].view(shape)
                yield rows, columns, torch.mm(data.rows(rows), features, out=cosines)

    def lists(self, length: int) -> Iterator[tuple[np.ndarray | slice, Tensor, Tensor]]:
        """Yield rows of some documents, and cosines and rows of the *length* nearest to each."""
        number, dimension = self.data.num_documents, self.data.dimension
        # Near blocks overlap, so each document would be read again for about twenty blocks.
        is_small = 2 * 4 * number * dimension <= self.data.working_set_bytes
        memory = self.data.rows(slice(None) if is_small else slice(0, self.most))
        held = memory.new_empty(min(self.most, number), self.shadow.dimension)
        for block, documents in enumerate(self.rows):
            others = self.columns(block)
            features = memory if is_small else self.data.rows(others, memory=memory)
            directions = self.shadow.rows(others, memory=held)
            for start in range(0, len(documents), TILE):
                rows = documents[start : start + TILE]
                # A block is the first of its near blocks.
                own = range(start, start + len(rows))
                columns = _nearest(directions, own, min(CANDIDATES * length, len(others)))
                places = others[columns] if is_small else columns
                cosines = _some_products(self.data.rows(rows), features, places)
                values, nearest = _first_and_nearest(own, cosines, columns, length)
                yield rows.cpu().numpy(), values, others[nearest]

    def exact_lists(
        self, length: int, probes_P: Tensor, probes_NP: Tensor
    ) -> Iterator[tuple[np.ndarray | slice, Tensor, Tensor]]:
        """Yield `lists` of a shard in one block, from all cosines; stores the probes' cosines."""
        for own, products in _squares(self.data):
            probes_NP[own.start : own.stop] = products[:, probes_P]
            diagonal = products.diagonal(own.start)
            squares = diagonal.clone()
            diagonal.fill_(2)
            tiles = torch.split(products, PLACES * length, 1)
            columns = _highest(tiles, products.shape[1], length)
            diagonal.copy_(squares)
            cosines = products.gather(1, columns)
            yield slice(own.start, own.stop), *_first_and_nearest(own, cosines, columns, length)


def _squares(data: ShardData) -> Iterator[tuple[range, Tensor]]:
    """Yield the cosines of all documents by rows, B x N, each computed once."""
    tiles: dict[tuple[int, int], Tensor] = {}
    blocks = [data.rows(rows) for rows in torch.split(torch.arange(data.num_documents), TILE)]
    memory = data.quality_N.new_empty(len(blocks[0]), data.num_documents)
    for own, features in enumerate(blocks):
        products = memory[: len(features)]
        for other, columns in enumerate(torch.split(products, TILE, 1)):
            if other < own:
                columns.copy_(tiles.pop((other, own)).T.contiguous())
            else:
                tiles[own, other] = features @ blocks[other].T
                columns.copy_(tiles[own, other])
        yield range(own * TILE, own * TILE + len(features)), products


@dataclass(frozen=True, slots=True)
class Neighbours:
    """A list of near neighbours for each document, of one length; it contains the document.

    Args:
        blocks: the blocks that were searched.
        cosines: N x N, documents with their neighbours, stored by column.
        last_N: the cosine of each document with the last one in its list.
        probes_NP: cosines of all documents with the probes; None for a shard in several blocks.
    """

    blocks: Blocks
    cosines: sparse.csc_array
    last_N: Tensor
    probes_NP: Tensor | None = None

    @classmethod
    def of(
        cls,
        data: ShardData,
        num_selected: int,
        probes_P: Tensor | None = None,
        progress: Progress | None = None,
    ) -> Neighbours:
        """Search neighbours for a selection of *num_selected* documents, at least one."""
        blocks, number = Blocks.of(data), data.num_documents
        fewest = min(len(blocks.columns(block)) for block in range(len(blocks.rows)))
        length = min(MOST_NEIGHBOURS, LISTED_SELECTED * number // num_selected)
        length = max(NEIGHBOURS, EXACT**2 // number, min(length, MOST_ENTRIES // number))
        length = min(length, fewest)
        similarity = np.empty((number, length), np.float32)
        columns = np.empty((number, length), np.int32)
        probes_NP = None
        nearest_lists: Iterator[tuple[np.ndarray | slice, Tensor, Tensor]] = blocks.lists(length)
        if len(blocks.rows) == 1:
            probes_P = torch.arange(0, device=data.device) if probes_P is None else probes_P
            probes_NP = data.quality_N.new_empty(number, len(probes_P))
            nearest_lists = blocks.exact_lists(length, probes_P, probes_NP)
        done = 0
        for at, values, best in nearest_lists:
            similarity[at], columns[at] = values.cpu().numpy(), best.cpu().numpy()
            done += len(values)
            if progress is not None:
                progress(done, number, "documents compared")
        starts = np.arange(0, similarity.size + 1, length)
        lists = sparse.csr_array((similarity.ravel(), columns.ravel(), starts), (number, number))
        last = torch.from_numpy(similarity[:, -1].copy()).to(data.device)
        return cls(blocks, lists.tocsc(), last, probes_NP)

    def selected(self, mask_N: Tensor) -> Tensor:
        """Count the selected documents in each list; shape N."""
        selected = self.cosines[:, mask_N.cpu().numpy()].indices
        number = np.bincount(selected, minlength=len(mask_N))
        return torch.from_numpy(number).to(mask_N.device)

    def covered(self, mask_N: Tensor, hidden_N: Tensor, rank: int = 1) -> Tensor:
        """Return each document's cosine with its *rank*-th nearest selected document; shape N.

        Only near blocks are searched, and only for documents in *hidden_N*. It is -1 for other
        documents, and where fewer documents are selected.
        """
        covered = torch.full_like(self.last_N, -1.0)
        for rows, columns, cosines in self.blocks.similarities(hidden_N, mask_N):
            if rank == 1:
                covered[rows] = cosines.amax(1)
            elif len(columns) >= rank:
                covered[rows] = cosines.topk(rank, dim=1).values[:, -1]
        return covered

    def gains(self, mask_N: Tensor) -> Tensor:
        """Return the marginal gain in mean similarity to the nearest selected document, shape N.

        A list with a selected document contains all documents whose selection would change its
        similarity; if it has only one, the second is searched among the selected. Documents whose
        list has none are compared with all of their near blocks.
        """
        data, gains = self.blocks.data, torch.zeros_like(mask_N, dtype=torch.float32)
        number = self.selected(mask_N)
        hidden = number < (
            1 if self.cosines.nnz > len(mask_N) else 2
        )  # A list with one entry has no second.
        others = self.covered(mask_N, number == 1, 2)
        lists = self.cosines.tocsr()[~hidden.cpu().numpy()]
        if lists.nnz:
            similarity, columns = (
                torch.from_numpy(values.reshape(lists.shape[0], -1)).to(data.device)
                for values in (lists.data, lists.indices.astype(np.int64))
            )
            top = torch.where(mask_N[columns], similarity, -torch.inf).topk(2, dim=1)
            best, first = top.values[:, :1], top.indices[:, :1]
            second = torch.maximum(top.values[:, 1:], others[~hidden, None])
            gain = (similarity - best).clamp_(min=0)
            gains.index_add_(0, columns.flatten(), gain.flatten())
            gains.index_add_(0, columns.gather(1, first)[:, 0], (best - second)[:, 0])
        everything = torch.ones_like(mask_N)
        for _, columns, cosines in self.blocks.similarities(hidden, everything):
            gains[columns] += marginal_coverage(cosines, -1.0, mask_N[columns])
        return gains / data.num_documents


def marginal_coverage(similarity_RC: Tensor, base_R: Tensor | float, chosen_C: Tensor) -> Tensor:
    """Return gain of each unchosen candidate and loss of each chosen one; sums over R, shape C.

    Args:
        similarity_RC: cosines of documents with candidates.
        base_R: the largest cosine of each document with the other selected documents; −1 if none.
        chosen_C: bool.
    """
    rows = chosen_C.nonzero()[:, 0]
    base = similarity_RC.new_full((len(similarity_RC), 2), -1.0)
    base[:, 0] = base_R
    top = torch.cat([similarity_RC[:, rows], base], 1).topk(2, dim=1)
    best, second = top.values[:, :1], top.values[:, 1:]
    gain = (similarity_RC - best).clamp_(min=0).sum(0)
    loss = gain.new_zeros(len(rows) + 2)
    loss.index_add_(0, top.indices[:, 0], (best - second)[:, 0])
    gain[rows] = loss[:-2]
    return gain


def _some_products(left_BD: Tensor, right_CD: Tensor, places_BK: Tensor) -> Tensor:
    """Multiply each row of one matrix with a few rows of another, which differ by row; B x K."""
    if left_BD.device.type != "cpu":
        return (left_BD[:, None] * right_CD[places_BK]).sum(2)
    # This takes a third of the time and does not copy the other rows.
    shape = (len(left_BD), len(right_CD))
    starts = torch.arange(0, places_BK.numel() + 1, places_BK.shape[1])
    zeros = torch.zeros(places_BK.numel())
    wanted = torch.sparse_csr_tensor(
        starts, places_BK.flatten(), zeros, shape, check_invariants=False
    )
    products: Tensor = torch.sparse.sampled_addmm(wanted, left_BD, right_CD.T, beta=0).values()
    return products.view_as(places_BK)


def _nearest(features_CD: Tensor, own: range, count: int) -> Tensor:
    """Return columns of each of the documents *own* and of nearly the nearest; B x count.

    Vectors are along few directions, where another document can be more similar than the document
    itself.
    """
    rows, width = features_CD[own.start : own.stop], PLACES * count
    memory = features_CD.new_empty(len(rows), width)

    def tiles() -> Iterator[Tensor]:
        for start in range(0, len(features_CD), width):
            part = features_CD[start : start + width]
            products = torch.mm(rows, part.T, out=memory[:, : len(part)])
            products.diagonal(own.start - start).fill_(2)
            yield products

    return _highest(tiles(), len(features_CD), count)


def _highest(tiles: Iterable[Tensor], number: int, count: int) -> Tensor:
    """Return columns of nearly the highest values of each row, B x count.

    `topk` of all columns would take as long as the products. So the *number* columns come in tiles
    of PLACES x count, and of the columns at one position of all tiles only the highest is taken. To
    remember its tile, the lowest bits of each value are replaced by the number of the tile, so
    values that differ only in these bits count as equal.
    """
    width = PLACES * count
    value_bits = -1 << (-(-number // width) - 1).bit_length()
    marked = (
        (tile.view(torch.int32) & value_bits | place).view(torch.float32)
        for place, tile in enumerate(tiles)
    )
    highest = next(marked)
    for tile in marked:
        begin = highest[:, : tile.shape[1]]
        torch.maximum(begin, tile, out=begin)
    values, columns = highest.topk(count, dim=1)
    return (values.view(torch.int32) & ~value_bits).long() * width + columns


def _first_and_nearest(
    own: range, cosines_BK: Tensor, columns_BK: Tensor, length: int
) -> tuple[Tensor, Tensor]:
    """Return cosines and columns of each document itself, then of the nearest of K candidates.

    Without the exception, exact copies of a document could displace it from its own list.
    """
    columns = torch.arange(own.start, own.stop, device=columns_BK.device)
    first = torch.where(columns_BK == columns[:, None], torch.inf, cosines_BK)
    best = first.topk(length, dim=1).indices
    return cosines_BK.gather(1, best), columns_BK.gather(1, best)
