"""Shards worked on together: for an engine a task is minutes of work, however small the shards.

A server that records each task, and a scheduler that places it, take about as long for a second of
work as for an hour. So neighbouring shards are put together until they hold enough documents, but
never so many that workers would run out of tasks before the others are done. Which shards go
together changes no byte of what comes out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from datamask.config.compute import Compute
from datamask.errors import DatamaskError, is_transient
from datamask.execution.pipeline import run_unit
from datamask.runs.run import Run

logger = logging.getLogger(__name__)

DOCUMENTS_PER_TASK = {"scores": 2_000_000, "embeddings": 200_000}
"""Documents that make a task of a minute or more, by stage."""
DOCUMENTS_OTHERWISE = 1_000_000
TASKS_PER_SLOT = 16
"""Least tasks for each that can run at once, where the shards are many enough."""
NAMED = 20


class BatchError(DatamaskError):
    """Shards of a batch failed; its others are done. Raised from an error that may heal, if any.

    Args:
        stage: the stage.
        failures: why, by shard.
    """

    def __init__(self, stage: str, failures: dict[int, str]) -> None:
        self.stage, self.failures = stage, failures
        shown = [f"{shard:05d} ({failures[shard]})" for shard in sorted(failures)[:NAMED]]
        more = f" and {len(failures) - NAMED} more" if len(failures) > NAMED else ""
        super().__init__(f"{stage}: {len(failures)} shards failed: {', '.join(shown)}{more}")

    def __reduce__(self) -> tuple[type[BatchError], tuple[str, dict[int, str]]]:
        # It is sent from the process that worked to the one that waits.
        return BatchError, (self.stage, self.failures)


def put_together(rows: Sequence[int], least_rows: int, most: int | None = None) -> list[range]:
    """Cut a row of shards into neighbours that hold at least *least_rows* documents together.

    Args:
        rows: documents of each shard, in order.
        least_rows: a batch ends with the shard that reaches this; the last one may hold less.
        most: shards in a batch at most.

    Returns:
        Positions in *rows*; together all of them, each once and in order.
    """
    found, first, held = [], 0, 0
    for position, number in enumerate(rows):
        held += number
        if held >= least_rows or position + 1 - first == most:
            found.append(range(first, position + 1))
            first, held = position + 1, 0
    if first < len(rows):
        found.append(range(first, len(rows)))
    return found


def batches(
    run: Run, stage: str, shards: Sequence[int], compute: Compute, slots: int
) -> list[list[int]]:
    """The tasks that a stage's shards make: `compute.shards_per_task`, or enough documents each.

    Args:
        run: the run.
        stage: one that is worked on shard by shard.
        shards: those that are left to do.
        compute: says how many shards a task has, or leaves it open.
        slots: how many tasks can run at once.
    """
    rows = [run.shard_rows(shard) for shard in shards]
    if compute.shards_per_task is not None:
        cut = put_together(rows, sum(rows) + 1, compute.shards_per_task)
    else:
        enough = DOCUMENTS_PER_TASK.get(stage, DOCUMENTS_OTHERWISE)
        cut = put_together(rows, min(enough, sum(rows) // (TASKS_PER_SLOT * slots)))
    return [[shards[position] for position in batch] for batch in cut]


def run_batch(
    run: Run, stage: str, shards: Iterable[int], compute: Compute, *, force: bool = False
) -> None:
    """Do these shards of a stage one after the other. One that fails does not stop the next.

    Raises:
        BatchError: some failed, all were tried; its cause is an error that may heal, if any was.
    """
    failures: dict[int, str] = {}
    passing: Exception | None = None
    for shard in shards:
        try:
            run_unit(run, stage, shard, compute, force=force)
        except Exception as error:  # also a mistake of ours must not stop the other shards
            failures[shard] = describe(error)
            tell: Callable[..., None] = logger.exception
            if isinstance(error, DatamaskError | OSError):
                tell = logger.error
            tell("%s: shard %05d failed: %s", stage, shard, failures[shard])
            if is_transient(error):
                passing = error
    if failures:
        raise BatchError(stage, failures) from passing


def describe(error: BaseException) -> str:
    """Why a shard failed, in one line."""
    if isinstance(error, DatamaskError | OSError):
        return str(error)
    return " ".join(f"{type(error).__name__}: {error}".split())
