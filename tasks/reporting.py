"""The task that writes the run's page."""

from __future__ import annotations

from prefect import task

from datamask.config.compute import Compute
from datamask.execution.pipeline import run_unit
from datamask.runs.run import open_run
from datamask.storage.location import Root
from tasks.retrying import RULES


@task(name="write-report", task_run_name="write-report", **RULES)
def write_report(root: Root, compute: Compute, force: bool = False) -> dict[str, str]:
    """Make what is left of stage `report`, which looks at every shard."""
    run_unit(open_run(root), "report", None, compute, force=force)
    return {"stage": "report"}
