"""The task that tries one choice of settings on one shard of a run."""

from __future__ import annotations

from prefect import task

from datamask import sweep as sweeping
from datamask.config import Compute, Sweep
from datamask.run_folder import Root
from datamask.store import open_run
from tasks.retrying import RULES


@task(name="try-choice", task_run_name="try {trial.name}", **RULES)
def try_choice(root: Root, sweep: Sweep, trial: sweeping.Trial, compute: Compute) -> None:
    """Make one file of `sweep/trials/`."""
    sweeping.try_choice(open_run(root), sweep, trial, compute)
