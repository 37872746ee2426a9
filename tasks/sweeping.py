"""The task that tries one choice of settings on one shard of a run."""

from __future__ import annotations

from prefect import task

from datamask.analysis import sweep_trials
from datamask.config.compute import Compute
from datamask.config.outputs import Sweep
from datamask.runs.opening import open_run
from datamask.storage.location import Root
from tasks.retrying import RULES


@task(name="try-choice", task_run_name="try {trial.name}", **RULES)
def try_choice(root: Root, sweep: Sweep, trial: sweep_trials.Trial, compute: Compute) -> None:
    """Make one file of `sweep/trials/`."""
    sweep_trials.try_choice(open_run(root), sweep, trial, compute)
