"""Form batches of shards, so that a task is minutes of work, however small the shards.

Recording and scheduling a task costs the same for a second of work as for an hour. So consecutive
shards form a batch with enough documents, but batches stay small enough that no worker runs out of
tasks early. Batches do not affect the output.
"""

from __future__ import annotations

from collections.abc import Sequence

from datamask.runs.run import Run
from datamask.runs.stages import STAGES

DOCUMENTS_PER_TASK = {
    "scores": 2_000_000,
    **dict.fromkeys(("classifier_scores", "classes", "embeddings"), 200_000),
}
"""Documents that make a task of a minute or more, by stage."""
DOCUMENTS_OTHERWISE = 1_000_000
TASKS_PER_SLOT = 16
"""Minimum number of tasks per slot, if there are enough shards."""


def put_together(rows: Sequence[int], least_rows: int) -> list[range]:
    """Cut consecutive shards, with these numbers of *rows*, into batches: ranges of their places.

    A batch ends with the shard that reaches *least_rows*; the last batch may have less.
    """
    ranges, first, held = [], 0, 0
    for end, number in enumerate(rows, 1):
        held += number
        if held >= least_rows or end == len(rows):
            ranges.append(range(first, end))
            first, held = end, 0
    return ranges


def batches(run: Run, stage: str, units: Sequence[int], slots: int) -> list[list[int]]:
    """Group units into batches worth a task, given that *slots* tasks can run at once."""
    if STAGES[stage].each in ("unit", "file"):
        return [[unit] for unit in units]
    rows = [run.shard_rows(run.shard_of(stage, unit)) for unit in units]
    enough = DOCUMENTS_PER_TASK.get(stage, DOCUMENTS_OTHERWISE)
    cut = put_together(rows, min(enough, sum(rows) // (TASKS_PER_SLOT * slots)))
    return [[units[position] for position in batch] for batch in cut]
