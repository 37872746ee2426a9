"""The task that publishes the subset. The token is never a parameter (`tasks.hub_token`)."""

from __future__ import annotations

from prefect import task

from datamask.config.compute import Compute
from datamask.execution.pipeline import run_unit
from datamask.runs.run import open_run
from datamask.storage.location import Root
from tasks.hub_token import provide_hub_token
from tasks.retrying import RULES


@task(name="publish", task_run_name="publish", **RULES)
def publish(root: Root, compute: Compute, force: bool = False) -> dict[str, str]:
    """Make what is left of stage `publication`, which looks at every shard."""
    provide_hub_token()
    run_unit(open_run(root), "publication", None, compute, force=force)
    return {"stage": "publication"}
