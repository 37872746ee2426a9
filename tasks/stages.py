"""The task of every stage."""

from __future__ import annotations

from typing import Any

from prefect import Task, task

from datamask.config.compute import Compute
from datamask.execution.attempts import attempt
from datamask.runs.opening import open_run
from datamask.runs.run import Run
from datamask.runs.stages import STAGES
from datamask.storage.location import Root
from tasks.forwarding import warnings_forwarded
from tasks.hub_token import provide_hub_token
from tasks.retrying import RULES

HUB = "hf-hub"
"""Tag of tasks that upload to the Hub. The server limits how many run at once."""


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
