"""How a stage is run under Prefect: the only fan-out, and how a flow ends.

A shard that fails never stops the others. When all have been tried, the flow ends Failed with one
line that names the shards and the command that finishes them. What is left to do is asked of the
run folder every time, so a retried, repeated or rerun flow does only that.
"""

import functools
import logging
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect import Task
from prefect.artifacts import (
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.futures import as_completed
from prefect.states import Failed
from prefect.task_runners import ThreadPoolTaskRunner

from datamask import locks
from datamask.config import Compute, Group
from datamask.errors import DatamaskError, TerminalError
from datamask.pipeline import SHARD_WORK
from datamask.status import counts_line, run_status, shard_table
from datamask.store import Run, open_run
from tasks.combining import combine_scores
from tasks.composing import compose
from tasks.embedding import embed_shard
from tasks.learning import learn_mask
from tasks.merging import write_subset
from tasks.planning import plan_shards
from tasks.publishing import publish
from tasks.reporting import write_report
from tasks.scoring import score_shard

TASKS: dict[str, Task[..., Any]] = {
    "scores": score_shard,
    "quality": combine_scores,
    "embeddings": embed_shard,
    "masks": learn_mask,
    "subset": write_subset,
    "composition": compose,
    "report": write_report,
    "publication": publish,
}
NAMED = 20

# Prefect attaches its handler to this logger ([tool.prefect] in pyproject.toml), but no level.
logging.getLogger("datamask").setLevel("INFO")


def ends_in_one_line(work: Callable[..., Any]) -> Callable[..., Any]:
    """Let a flow that fails for a known reason end Failed with that reason as its message."""

    @functools.wraps(work)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return work(*args, **kwargs)
        except (DatamaskError, OSError) as error:
            return Failed(message=str(error), data=error)

    return wrapper


def with_settings(root: Path, compute: Compute, **groups: Group | None) -> Run:
    """Open a run; groups that are given replace those of run.json and make their outputs stale.

    Raises:
        DatamaskError: there is no run, or the settings do not fit its source.
    """
    run = open_run(root)
    given = {name: group for name, group in groups.items() if group is not None}
    settings = run.settings.model_copy(update=given)
    if settings != run.settings:
        plan_shards(root, settings, compute, publishing=groups.get("publication") is not None)
        run = open_run(root)
    return run


def run_stage(
    run: Run,
    stage: str,
    compute: Compute,
    shards: list[int] | None = None,
    force: bool = False,
) -> None:
    """Do what is left of a stage, `compute.workers` shards at once.

    Raises:
        TerminalError: shards failed; all the others are done.
        DatamaskError: a stage that looks at every shard failed.
    """
    with locks.working(run.root):
        units = run.remaining(stage, shards if stage in SHARD_WORK else None, force=force)
        if not units:
            logging.getLogger("datamask").info("%s: nothing to do", stage)
        elif stage in SHARD_WORK:
            failures = _fan_out(run, stage, units, compute, force)
            if failures:
                raise TerminalError(_explain(run, stage, failures))
        else:
            TASKS[stage](run.root, compute, force)


def _fan_out(
    run: Run, stage: str, units: list[int], compute: Compute, force: bool
) -> dict[int, str]:
    """Try every shard; return what went wrong, by shard."""
    task, failures = TASKS[stage], {}
    shared = {"root": run.root, "compute": compute, "force": force}
    progress = create_progress_artifact(0.0, key=f"{stage}-progress", description=stage)
    with ThreadPoolTaskRunner(max_workers=compute.workers) as runner:
        futures = {runner.submit(task, {**shared, "shard": unit}): unit for unit in units}
        for done, future in enumerate(as_completed(list(futures)), 1):
            future.wait()  # only this fetches the final state
            if not future.state.is_completed():
                failures[futures[future]] = _reason(future.state)
            if 100 * done // len(units) > 100 * (done - 1) // len(units):
                update_progress_artifact(progress, 100.0 * done / len(units))
    if failures:
        rows = [{"shard": f"{unit:05d}", "problem": failures[unit]} for unit in sorted(failures)]
        create_table_artifact(rows, key=f"{stage}-failed", description=f"{stage}: failed shards")
    status = run_status(run)
    create_table_artifact(shard_table(status), key="shards", description=counts_line(status))
    return failures


def _reason(state: Any) -> str:
    error = state.result(raise_on_failure=False)
    if isinstance(error, DatamaskError | OSError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def _explain(run: Run, stage: str, failures: dict[int, str]) -> str:
    names = [f"{unit:05d}" for unit in sorted(failures)]
    shown = ", ".join(names[:NAMED])
    if len(names) > NAMED:
        shown += f" and {len(names) - NAMED} more"
    root = shlex.quote(f"root={run.root}")
    return (
        f"{stage}: {len(names)} of {run.num_units(stage)} shards failed: {shown} "
        f"({failures[min(failures)]}); mend the cause, then "
        f"`prefect deployment run rerun-failed/local --param {root}` does only what is left"
    )
