"""The tasks: one that cuts the source into shards, and one that makes outputs of any stage."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

from prefect import Task, task

from datamask.config.compute import Compute
from datamask.config.group import Group
from datamask.config.loading import parse_settings
from datamask.config.settings import Settings
from datamask.errors import check_secrets
from datamask.execution.attempts import attempt
from datamask.planning.plan import plan_run
from datamask.runs.opening import open_run
from datamask.runs.run import Run
from datamask.runs.stages import STAGES
from datamask.storage.location import Root
from tasks.forwarding import warnings_forwarded
from tasks.retrying import RULES

HUB = "hf-hub"
"""Tag of tasks that upload to the Hub. The server limits how many run at once."""


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


def with_groups(settings: Settings, given: Mapping[str, Group | int | None]) -> Settings:
    """Replace groups in the settings of a run; None or absent groups stay as they are."""
    changes = {name: value for name, value in given.items() if value is not None}
    merged: Settings = parse_settings(settings.changed_by(changes).given())
    return merged


@task(**RULES)
def work(root: Root, stage: str, units: list[int], compute: Compute, force: bool = False) -> None:
    """Make these outputs of a stage. A retry makes only those not done; with force, all."""
    run = open_run(root)
    if stage == "publication":
        provide_hub_token()
    with warnings_forwarded():
        attempt(run, stage, units, compute, force=force, patient=False)


def task_of(run: Run, stage: str, units: list[int]) -> Task[..., Any]:
    """Return the task `work`, named by its stage; its runs are named by round and shards too."""
    name = run.folder_of(stage, units[0]).replace("/", "-")
    if STAGES[stage].in_parallel:
        first, last = (run.unit_label(stage, unit) for unit in (units[0], units[-1]))
        name += f"-{first}" if len(units) == 1 else f"-{first}-to-{last}"
    tags = [HUB] if stage == "publication" else []
    return work.with_options(name=stage, task_run_name=name, tags=tags)


def provide_hub_token() -> None:
    """Set this process's HF_TOKEN from Secret block `hf-token`, if unset and if there is a block.

    The token is in no parameter, state, log or file.

    Raises:
        SettingsError: no token looks like this one.
    """
    if not os.environ.get("HF_TOKEN"):
        from prefect.blocks.system import Secret

        with contextlib.suppress(ValueError):
            # `load` has an asynchronous twin under the same name; here it is always synchronous.
            secret: Any = Secret.load("hf-token")
            os.environ["HF_TOKEN"] = str(secret.get())
    check_secrets()
