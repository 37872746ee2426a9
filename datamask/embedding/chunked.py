"""Run a shard's documents through a model, chunk by chunk: prepared ahead, and checkpointed.

A device that waits for its host is idle, so a chunk is read and prepared in a thread while the one
before it is computed. A kill does not lose finished chunks: each is a checkpoint, named after its
ids. On a CPU, the finished windows of a chunk in work are a checkpoint too, every minute.
"""

from __future__ import annotations

import contextvars
import functools
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa

from datamask.embedding.forward import Partial, Tokenised
from datamask.embedding.speed import METRICS
from datamask.runs.checkpoints import Checkpoints, State
from datamask.runs.in_progress import advance, note
from datamask.runs.run import digest

Given = TypeVar("Given")
Made = TypeVar("Made")

CHUNK = 4096
"""Number of texts that are tokenised and sorted by length together: with more of them, the texts of
a batch differ less in length."""

AHEAD = 2
"""Number of items that are finished or being made."""


def computed_chunks(
    batches: Iterable[pa.RecordBatch],
    total: int,
    prepare: Callable[[pa.RecordBatch], Any],
    compute: Callable[[pa.RecordBatch, Any], State],
    checkpoints: Checkpoints | None,
) -> Iterator[tuple[pa.RecordBatch, State]]:
    """Yield each chunk of a shard's documents with its arrays; at the end, note `speed.METRICS`.

    *batches* have id, content and row in the shard; *prepare* is the work of the host on a chunk
    ahead, in another thread; *compute* makes arrays, by name, from a chunk and what was prepared.
    Without *checkpoints*, no arrays are kept.
    """
    metrics = dict.fromkeys(METRICS, 0.0)
    numbers = itertools.count()

    def prepared(table: pa.Table) -> tuple[pa.RecordBatch, str, Any, Any]:
        batch = table.to_batches()[0]
        # Named after its ids: an array would pad them to the longest.
        name = f"{next(numbers):06d}-{digest(batch.column(0).to_pylist())}"
        kept: State | None = checkpoints.load(name) if checkpoints else None
        return batch, name, kept, prepare(batch) if kept is None else None

    start = waiting = time.monotonic()
    done = 0
    tables = regrouped((pa.Table.from_batches([batch]) for batch in batches), CHUNK)
    for batch, name, kept, ready in read_ahead(tables, prepared):
        metrics["waited_seconds"] += time.monotonic() - waiting
        if kept is None:
            metrics["documents"] += batch.num_rows
            for counted, count in getattr(ready, "counts", {}).items():
                metrics[counted] += count
            if isinstance(ready, Tokenised):
                report = functools.partial(_advance_within, done, batch.num_rows, total)
                ready = replace(ready, partial=Partial(checkpoints, f"{name}-part", report))
            kept = compute(batch, ready)
            if checkpoints:
                checkpoints.save(name, kept)
        done += batch.num_rows
        advance(done, total)
        yield batch, kept
        waiting = time.monotonic()
    assert done == total, "each document once"
    note(**metrics | {"seconds": time.monotonic() - start})


def _advance_within(before: int, rows: int, total: int, windows: int, of: int) -> None:
    """Report a chunk of *rows* documents that has some of its windows computed."""
    advance(before + rows * windows // of, total)


def read_ahead(items: Iterable[Given], make: Callable[[Given], Made]) -> Iterator[Made]:
    """Yield `make(item)` for every item, in order, computed ahead in another thread.

    An exception of *items* or *make* is raised here, at its place in the order. The thread ends
    when this iterator is closed.
    """
    made = map(make, items)
    # The thread adds to the record of the same unit of work.
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1, "read-ahead") as thread:

        def next_one() -> list[Made]:
            """Return the next item, alone; nothing at the end."""
            return list(itertools.islice(made, 1))

        waiting = deque(thread.submit(context.run, next_one) for _ in range(AHEAD))
        try:
            while following := waiting.popleft().result():
                waiting.append(thread.submit(context.run, next_one))
                yield following[0]
        finally:
            for future in waiting:
                future.cancel()
            # A generator must be closed by the thread that ran it.
            thread.submit(getattr(items, "close", lambda: None))


def regrouped(tables: Iterable[pa.Table], size: int) -> Iterator[pa.Table]:
    """Yield the rows of some tables in tables of *size* rows; the last one has the rest."""
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
