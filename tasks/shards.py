"""The task that works on shards of a stage: one, or several that are small."""

from __future__ import annotations

from typing import Any

from prefect import Task, task

from datamask.config.compute import Compute
from datamask.execution.shard_batches import run_batch
from datamask.runs.run import open_run
from datamask.storage.location import Root
from tasks.retrying import RULES

NAMES = {"scores": "score-shard", "embeddings": "embed-shard", "masks": "learn-mask"}
"""What the task is called, where it is not called like the stage."""


@task(**RULES)
def work_on_shards(
    root: Root, stage: str, shards: list[int], compute: Compute, force: bool = False
) -> dict[str, int | str]:
    """Make these files of a stage. A retry does those that are not done (all of them by force)."""
    run_batch(open_run(root), stage, shards, compute, force=force)
    return {"stage": stage, "shards": len(shards)}


def named_task(stage: str, shards: list[int]) -> Task[..., Any]:
    """The same task under the name of its stage, run under that of its shards."""
    name = NAMES.get(stage, stage)
    first, last = f"{shards[0]:05d}", f"{shards[-1]:05d}"
    numbers = first if len(shards) == 1 else f"{first}-to-{last}"
    prefix = name.partition("-")[0] if stage in NAMES else stage
    return work_on_shards.with_options(name=name, task_run_name=f"{prefix}-{numbers}")
