"""The task that checks the source and cuts it into shards."""

from __future__ import annotations

from collections.abc import Mapping

from prefect import task

from datamask.config.compute import Compute
from datamask.config.group import Group
from datamask.config.loading import with_groups
from datamask.config.settings import Settings
from datamask.planning.plan import plan_run
from datamask.runs.run import Run
from datamask.storage.location import Root
from tasks.hub_token import provide_hub_token
from tasks.retrying import RULES


@task(name="plan-shards", task_run_name="plan", **RULES)
def plan_shards(
    root: Root,
    given: Mapping[str, Group | int | None],
    compute: Compute,
    publishing: bool = True,
    extend: bool = False,
) -> Run:
    """Write run.json and plan.parquet, or check them against the source (`plan_run`).

    *given* has groups of settings, and `seed`, by name. Settings that are not given, also within a
    group, are as in run.json if the run exists, else the default.
    """

    def asked_for(own: Settings | None) -> Settings:
        settings = with_groups(own or Settings(), given)
        if publishing and settings.publication is not None:
            provide_hub_token()
        return settings

    return plan_run(root, asked_for, compute, publishing=publishing, extend=extend)
