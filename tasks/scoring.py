"""The task that reads a shard's facts and raw scores."""

from __future__ import annotations

from pathlib import Path

from prefect import task

from datamask.config import Compute
from datamask.pipeline import run_unit
from datamask.store import open_run
from tasks.retrying import RULES


@task(name="score-shard", task_run_name="score-{shard:05d}", **RULES)
def score_shard(
    root: Path, shard: int, compute: Compute, force: bool = False
) -> dict[str, int | str]:
    """Make one file of `scores/`."""
    run_unit(open_run(root), "scores", shard, compute, force=force)
    return {"stage": "scores", "shard": shard}
