"""The tasks between rounds of learning, which look at every shard: sums, and the cut."""

from __future__ import annotations

from typing import Any

from prefect import Task, task

from datamask.config.compute import Compute
from datamask.execution.pipeline import run_unit
from datamask.runs.run import open_run
from datamask.storage.location import Root
from tasks.retrying import RULES


@task(**RULES)
def compare_shards(root: Root, stage: str, compute: Compute, force: bool = False) -> dict[str, str]:
    """Make what is left of a stage that looks at every shard."""
    run_unit(open_run(root), stage, None, compute, force=force)
    return {"stage": stage}


def named_comparison(stage: str) -> Task[..., Any]:
    """The same task under the name of its stage."""
    return compare_shards.with_options(name=stage, task_run_name=stage)
