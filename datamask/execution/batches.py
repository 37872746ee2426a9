"""Shards worked on together: for an engine a task is minutes of work, however small the shards.

A server that records each task, and a scheduler that places it, take about as long for a second of
work as for an hour. So neighbouring shards are put together until they hold enough documents, but
never so many that workers would run out of tasks before the others are done. Which shards go
together changes no byte of what comes out.
"""

from __future__ import annotations

from collections.abc import Sequence

from datamask.config.compute import Compute
from datamask.runs.run import Run

DOCUMENTS_PER_TASK = {"scores": 2_000_000, "classifier_scores": 200_000, "embeddings": 200_000}
"""Documents that make a task of a minute or more, by stage."""
DOCUMENTS_OTHERWISE = 1_000_000
TASKS_PER_SLOT = 16
"""Least tasks for each that can run at once, where the shards are many enough."""


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
    run: Run, stage: str, units: Sequence[int], compute: Compute, slots: int
) -> list[list[int]]:
    """The tasks that a stage's shards make: `compute.shards_per_task`, or enough documents each.

    Args:
        run: the run.
        stage: one that is worked on shard by shard.
        units: those that are left to do, one shard each.
        compute: says how many shards a task has, or leaves it open.
        slots: how many tasks can run at once.
    """
    rows = [run.shard_rows(run.shard_of(stage, unit)) for unit in units]
    if compute.shards_per_task is not None:
        cut = put_together(rows, sum(rows) + 1, compute.shards_per_task)
    else:
        enough = DOCUMENTS_PER_TASK.get(stage, DOCUMENTS_OTHERWISE)
        cut = put_together(rows, min(enough, sum(rows) // (TASKS_PER_SLOT * slots)))
    return [[units[position] for position in batch] for batch in cut]
