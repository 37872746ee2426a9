"""Blocks of similar documents, all of nearly the same size.

The shard is halved recursively at the median of its first principal direction. Every level reads
the embeddings once, so the cost per document grows with the logarithm of the number of blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from datamask.learning.data import ShardData

# Documents from which a direction is computed, and rounds of the power iteration.
# See docs/log.md#coverage.
SAMPLE, ROUNDS = 4096, 12


def similar_blocks(data: ShardData, largest: int) -> list[Tensor]:
    """Cut a shard into blocks of at most *largest* documents; rows ascending in each.

    The blocks depend on the data alone: no random number is drawn.
    """
    waiting = [torch.arange(data.num_documents, device=data.device)]
    blocks = []
    while waiting:
        rows = waiting.pop()
        if len(rows) <= largest:
            blocks.append(rows)
            continue
        direction = _direction(data.rows(rows[:: max(1, len(rows) // SAMPLE)]))
        parts = [data.rows(part) @ direction for part in torch.split(rows, data.chunk_rows)]
        order = torch.argsort(torch.cat(parts), stable=True)
        half = len(rows) // 2
        waiting += [rows[order[half:]].sort().values, rows[order[:half]].sort().values]
    return blocks


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
