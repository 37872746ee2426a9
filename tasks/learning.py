"""The task that learns which documents of a shard to keep."""

from __future__ import annotations

from pathlib import Path

from prefect import task

from datamask.config import Compute
from datamask.pipeline import run_unit
from datamask.store import open_run
from tasks.retrying import RULES


@task(name="learn-mask", task_run_name="learn-{shard:05d}", **RULES)
def learn_mask(
    root: Path, shard: int, compute: Compute, force: bool = False
) -> dict[str, int | str]:
    """Make one file of `masks/`."""
    run_unit(open_run(root), "masks", shard, compute, force=force)
    return {"stage": "masks", "shard": shard}
