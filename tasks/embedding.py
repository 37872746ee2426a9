"""The task that turns a shard's texts into vectors."""

from __future__ import annotations

from pathlib import Path

from prefect import task

from datamask.config import Compute
from datamask.pipeline import run_unit
from datamask.store import open_run
from tasks.retrying import RULES


@task(name="embed-shard", task_run_name="embed-{shard:05d}", **RULES)
def embed_shard(
    root: Path, shard: int, compute: Compute, force: bool = False
) -> dict[str, int | str]:
    """Make one file of `embeddings/`."""
    run_unit(open_run(root), "embeddings", shard, compute, force=force)
    return {"stage": "embeddings", "shard": shard}
