"""Blocks of similar documents.

The shard is halved recursively at the median of its first principal direction. Then documents move
to the block with the nearest centre a few times (k-means), because halves cut through groups of
similar documents. Per document, halving costs a product with a direction for each level, and a move
one with each centre: little next to a search among thousands of documents.
"""

from __future__ import annotations

import torch
from torch import Tensor

from datamask.learning.data import ShardData

# Documents from which a direction is computed, rounds of the power iteration, and of k-means.
# See docs/log.md#coverage.
SAMPLE, ROUNDS, MOVES = 4096, 12, 3


def similar_blocks(data: ShardData, size: int) -> list[Tensor]:
    """Cut a shard into blocks of about *size* documents, twice as many at most; rows ascending.

    The blocks depend on the data alone: no random number is drawn. A shard of at most *size*
    documents is one block.
    """
    blocks = _halved(data, [torch.arange(data.num_documents, device=data.device)], size)
    for _ in range(MOVES if len(blocks) > 1 else 0):
        directions = centres(data, blocks).T
        nearest = torch.cat([data.product(x, directions).argmax(1) for _, x in data.blocks()])
        sizes = torch.bincount(nearest, minlength=len(blocks)).tolist()
        moved = torch.split(torch.argsort(nearest, stable=True), sizes)
        blocks = [rows for rows in moved if len(rows)]
    return _halved(data, blocks, 2 * size)


def centres(data: ShardData, blocks: list[Tensor]) -> Tensor:
    """The direction of the mean of each block, blocks x D."""
    sums = ([data.rows(part).sum(0) for part in _parts(data, rows)] for rows in blocks)
    means = torch.stack([torch.stack(one).sum(0) for one in sums])
    return torch.nn.functional.normalize(means, dim=1)


def _halved(data: ShardData, blocks: list[Tensor], largest: int) -> list[Tensor]:
    """Halve blocks of more than *largest* documents until there are none."""
    waiting, halved = list(blocks), []
    while waiting:
        rows = waiting.pop()
        if len(rows) <= largest:
            halved.append(rows)
            continue
        direction = _direction(data.rows(rows[:: max(1, len(rows) // SAMPLE)]))
        along = torch.cat([data.rows(part) @ direction for part in _parts(data, rows)])
        order = torch.argsort(along, stable=True)
        half = len(rows) // 2
        waiting += [rows[order[half:]].sort().values, rows[order[:half]].sort().values]
    return halved


def _parts(data: ShardData, rows: Tensor) -> tuple[Tensor, ...]:
    return torch.split(rows, data.chunk_rows)


def _direction(sample_BD: Tensor) -> Tensor:
    """The first principal direction, by power iteration from the document farthest out."""
    centred = sample_BD - sample_BD.mean(0)
    direction = centred[centred.square().sum(1).argmax()]
    for _ in range(ROUNDS):
        length = direction.norm()
        if not bool(length > 0):
            break  # all documents are equal, so any halves will do
        direction = centred.T @ (centred @ (direction / length))
    return direction
