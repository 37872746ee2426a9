"""The task that publishes the subset. The token is HF_TOKEN of the worker, never a parameter."""

from __future__ import annotations

from pathlib import Path

from prefect import task

from datamask.config import Compute
from datamask.pipeline import run_unit
from datamask.store import open_run
from tasks.retrying import RULES


@task(name="publish", task_run_name="publish", **RULES)
def publish(root: Path, compute: Compute) -> dict[str, str]:
    """Make what is left of stage `publication`, which looks at every shard."""
    run_unit(open_run(root), "publication", None, compute)
    return {"stage": "publication"}
