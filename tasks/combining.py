"""The task that brings all scores to one scale and prunes the worst documents."""

from __future__ import annotations

from prefect import task

from datamask.config.compute import Compute
from datamask.execution.pipeline import run_unit
from datamask.runs.run import open_run
from datamask.storage.location import Root
from tasks.retrying import RULES


@task(name="combine-scores", task_run_name="combine-scores", **RULES)
def combine_scores(root: Root, compute: Compute, force: bool = False) -> dict[str, str]:
    """Make what is left of stage `quality`, which looks at every shard."""
    run_unit(open_run(root), "quality", None, compute, force=force)
    return {"stage": "quality"}
