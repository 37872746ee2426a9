"""Divide a shard into blocks of similar documents.

The shard is halved recursively at the median of its first principal direction. Then documents move
to the block with the nearest centre a few times (k-means), because halves cut through groups of
similar documents. Per document, halving costs a product with one direction for each level, and a
move costs a product with each centre: little next to a search among thousands of documents.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from datamask.learning.data import ShardData, moments_of
from datamask.objectives.products import times_vector
from datamask.objectives.threads import one_thread

# Number of documents that give directions; rounds of the power iteration for one direction and for
# several; rounds of k-means (docs/log.md#coverage).
SAMPLE, ROUNDS, ROUNDS_OF_SEVERAL, MOVES = 8192, 12, 4, 3


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


def projected(data: ShardData, number: int) -> ShardData:
    """Return the shard along *number* principal directions, float16; itself, if D is not larger.

    Among many documents, those with the largest products are nearly the same as in all dimensions.
    """
    if data.dimension <= number:
        return data
    sample = data.part(_sampled(torch.arange(data.num_documents, device=data.device)))
    squares = moments_of(sample, torch.ones_like(sample.quality_N), 2).second_DD.float()
    directions = sample.rows(slice(None, None, max(1, sample.num_documents // number)))[:number].T
    for _ in range(ROUNDS_OF_SEVERAL):
        directions = squares @ _orthonormal(directions)
    directions = _orthonormal(directions)
    features = np.empty((data.num_documents, directions.shape[1]), np.float16)
    for rows, x in data.blocks():
        features[rows] = (x @ directions).cpu().numpy()
    return replace(data, features=features, places=None, covers={})


def _orthonormal(directions: Tensor) -> Tensor:
    with one_thread():
        orthonormal: Tensor = torch.linalg.qr(directions).Q
    return orthonormal


def centres(data: ShardData, blocks: list[Tensor]) -> Tensor:
    """Return the direction of the mean of each block, blocks x D."""
    sums = ([data.rows(part).sum(0) for part in _parts(data, rows)] for rows in blocks)
    means = torch.stack([torch.stack(vectors).sum(0) for vectors in sums])
    return torch.nn.functional.normalize(means, dim=1)


def _halved(data: ShardData, blocks: list[Tensor], largest: int) -> list[Tensor]:
    """Halve blocks of more than *largest* documents until there are none."""
    waiting, halved = list(blocks), []
    while waiting:
        rows = waiting.pop()
        if len(rows) <= largest:
            halved.append(rows)
            continue
        direction = _direction(data.rows(_sampled(rows)))
        along = torch.cat([times_vector(data.rows(part), direction) for part in _parts(data, rows)])
        order = torch.argsort(along, stable=True)
        half = len(rows) // 2
        waiting += [rows[order[half:]].sort().values, rows[order[:half]].sort().values]
    return halved


def _parts(data: ShardData, rows: Tensor) -> tuple[Tensor, ...]:
    return torch.split(rows, data.chunk_rows)


def _sampled(rows: Tensor) -> Tensor:
    """Take documents at equal distances: SAMPLE or fewer than twice as many."""
    return rows[:: max(1, len(rows) // SAMPLE)]


def _direction(sample_BD: Tensor) -> Tensor:
    """Return the first principal direction, by power iteration from the document farthest out."""
    centred = sample_BD - sample_BD.mean(0)
    direction = centred[centred.square().sum(1).argmax()]
    squares_DD = centred.T @ centred
    for _ in range(ROUNDS):
        length = direction.norm()
        if not bool(length > 0):
            break  # All documents are equal, so any halves will do.
        direction = times_vector(squares_DD, direction / length)
    return direction
