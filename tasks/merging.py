"""The task that joins the masks to the source's rows and writes the subset."""

from __future__ import annotations

from prefect import task

from datamask.config.compute import Compute
from datamask.execution.pipeline import run_unit
from datamask.runs.run import open_run
from datamask.storage.location import Root
from tasks.retrying import RULES


@task(name="write-subset", task_run_name="write-subset", **RULES)
def write_subset(root: Root, compute: Compute, force: bool = False) -> dict[str, str]:
    """Make what is left of stage `subset`, which looks at every shard."""
    run_unit(open_run(root), "subset", None, compute, force=force)
    return {"stage": "subset"}
