"""The task that tabulates what the corpus and the subset are made of."""

from __future__ import annotations

from prefect import task

from datamask.config.compute import Compute
from datamask.execution.pipeline import run_unit
from datamask.runs.run import open_run
from datamask.storage.location import Root
from tasks.retrying import RULES


@task(name="compose", task_run_name="compose", **RULES)
def compose(root: Root, compute: Compute, force: bool = False) -> dict[str, str]:
    """Make what is left of stage `composition`, which looks at every shard."""
    run_unit(open_run(root), "composition", None, compute, force=force)
    return {"stage": "composition"}
