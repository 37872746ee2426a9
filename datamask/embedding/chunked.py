"""A shard's documents through a model, chunk by chunk: prepared ahead, and kept until all are done.

A chunk is read and prepared while the one before it is computed. What was computed survives a kill
as a checkpoint of each chunk, named after its ids.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from datamask.embedding.read_ahead import read_ahead
from datamask.embedding.speed import METRICS
from datamask.runs.checkpoints import Checkpoints
from datamask.runs.run import digest


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Documents that are computed together.

    Args:
        number: from 0, in the shard.
        batch: id, content, row in the shard.
        kept: what was computed of them, if an earlier attempt did.
        prepared: else, what was made of them ahead.
    """

    number: int
    batch: pa.RecordBatch
    kept: np.ndarray | None
    prepared: Any


class ChunkedWork:
    """The chunks of one shard.

    Args:
        prepare: what the host does with a chunk ahead, in another thread; may be nothing.
        compute: a chunk and what was prepared to an array, a row for each document.
        checkpoints: where arrays are kept; None keeps nothing.
    """

    def __init__(
        self,
        prepare: Callable[[pa.RecordBatch], Any],
        compute: Callable[[pa.RecordBatch, Any], np.ndarray],
        checkpoints: Checkpoints | None,
    ) -> None:
        self.prepare = prepare
        self.compute = compute
        self.checkpoints = checkpoints
        self.metrics = dict.fromkeys(METRICS, 0.0)
        self._start = time.monotonic()

    def arrays(
        self, batches: Iterator[pa.RecordBatch], size: int
    ) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
        """Each chunk of *size* documents (id, content, row in the shard) with its array."""
        waiting = time.monotonic()
        for chunk in read_ahead(_chunks(batches, size), self._prepared):
            self.metrics["waited_seconds"] += time.monotonic() - waiting
            yield chunk.batch, self._computed(chunk)
            waiting = time.monotonic()

    def finished_metrics(self) -> dict[str, float]:
        """What the attempt did and took (`speed.METRICS`)."""
        return {**self.metrics, "seconds": time.monotonic() - self._start}

    def _prepared(self, chunk: tuple[int, pa.RecordBatch]) -> _Chunk:
        number, batch = chunk
        found = None
        if self.checkpoints is not None:
            found = self.checkpoints.load(_name(number, batch))
        if found is not None:
            return _Chunk(number, batch, found["vectors"], None)
        return _Chunk(number, batch, None, self.prepare(batch))

    def _computed(self, chunk: _Chunk) -> np.ndarray:
        if chunk.kept is not None:
            return chunk.kept
        self.metrics["documents"] += chunk.batch.num_rows
        for name, count in getattr(chunk.prepared, "counts", {}).items():
            self.metrics[name] += count
        made = self.compute(chunk.batch, chunk.prepared)
        if self.checkpoints is not None:
            self.checkpoints.save(_name(chunk.number, chunk.batch), {"vectors": made})
        return made


def _name(number: int, batch: pa.RecordBatch) -> str:
    """A chunk's checkpoint, named after its ids: an array would pad them to the longest."""
    return f"{number:06d}-{digest(batch.column(0).to_pylist())}"


def _chunks(batches: Iterator[pa.RecordBatch], size: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Rows in chunks of *size*, numbered from 0, however they came."""
    tables = (pa.Table.from_batches([batch]) for batch in batches)
    for number, table in enumerate(regrouped(tables, size)):
        yield number, table.to_batches()[0]


def regrouped(tables: Iterator[pa.Table], size: int) -> Iterator[pa.Table]:
    """The rows of some tables in tables of *size* rows, the last one of the rest."""
    waiting: list[pa.Table] = []
    rows = 0
    for table in tables:
        waiting.append(table)
        rows += table.num_rows
        while rows >= size:
            joined = pa.concat_tables(waiting).combine_chunks()
            yield joined.slice(0, size)
            waiting, rows = [joined.slice(size)], rows - size
    if rows:
        yield pa.concat_tables(waiting).combine_chunks()
