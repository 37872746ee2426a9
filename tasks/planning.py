"""The task that checks the source and cuts it into shards."""

from __future__ import annotations

from prefect import task

from datamask.config import Compute, Settings
from datamask.plan import plan_run
from datamask.run_folder import Root
from tasks.hub_token import provide_hub_token
from tasks.retrying import RULES


@task(name="plan-shards", task_run_name="plan", **RULES)
def plan_shards(
    root: Root, settings: Settings, compute: Compute, publishing: bool = True
) -> dict[str, int]:
    """Write run.json and plan.parquet, or check them against the source."""
    if publishing and settings.publication is not None:
        provide_hub_token()
    run = plan_run(root, settings, compute, publishing=publishing)
    return {"documents": run.num_documents, "shards": run.num_shards}
