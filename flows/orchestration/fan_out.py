"""How a stage is run under Prefect: the only fan-out, and how a flow ends.

A shard that fails never stops the others. When all have been tried, the flow ends Failed with one
line that names the shards and the command that finishes them. What is left to do is asked of the
run folder every time, so a retried, repeated or rerun flow does only that.
"""

import functools
import logging
import queue
import shlex
from collections.abc import Callable
from typing import Any

from prefect import Task
from prefect.artifacts import (
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.futures import PrefectFuture
from prefect.states import Failed

from datamask.config.compute import Compute
from datamask.config.group import Group
from datamask.errors import DatamaskError, TerminalError
from datamask.execution.shard_batches import BatchError, batches, describe
from datamask.execution.status import counts_line, run_status, shard_table
from datamask.runs import locks
from datamask.runs.run import Run, open_run
from datamask.runs.stages import SHARD_WORK
from datamask.storage.location import Root
from flows.orchestration.partitions import run_parts
from flows.orchestration.task_runners import engine
from tasks.combining import combine_scores
from tasks.composing import compose
from tasks.merging import write_subset
from tasks.planning import plan_shards
from tasks.publishing import publish
from tasks.reporting import write_report
from tasks.shards import named_task
from tasks.summing import named_comparison

TASKS: dict[str, Task[..., Any]] = {
    "quality": combine_scores,
    "subset": write_subset,
    "composition": compose,
    "report": write_report,
    "publication": publish,
}
"""Tasks of stages that look at every shard. `tasks.summing` is for those between shards' rounds,
`tasks.shards` for the shards."""

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


def with_settings(root: Root, compute: Compute, **groups: Group | None) -> Run:
    """Open a run; groups that are given replace those of run.json and make their outputs stale.

    Raises:
        DatamaskError: there is no run, or the settings do not fit its source.
    """
    run = open_run(root)
    given = {name: group for name, group in groups.items() if group is not None}
    if run.settings.model_copy(update=given) == run.settings:
        return run
    return plan_shards(root, given, compute, publishing="publication" in given)


def run_stage(
    run: Run,
    stage: str,
    compute: Compute,
    shards: list[int] | None = None,
    force: bool = False,
    partitions: int = 1,
) -> None:
    """Do what is left of a stage: here, or dealt to as many child flow runs (`partitions`).

    Raises:
        TerminalError: shards failed; all the others are done.
        DatamaskError: a stage that looks at every shard failed.
    """
    with locks.working_on(run):
        units = run.remaining(stage, shards if stage in SHARD_WORK else None, force=force)
        if not units:
            logging.getLogger("datamask").info("%s: nothing to do", stage)
        elif stage in SHARD_WORK:
            if partitions > 1:
                failures = run_parts(run, stage, units, compute, force, partitions)
            else:
                failures = _fan_out(run, stage, units, compute, force)
            _show_failures(stage, failures)
            status = run_status(run)
            table = shard_table(status)
            create_table_artifact(table, key="shards", description=counts_line(status))
            if failures:
                raise TerminalError(_explain(run, stage, failures, partitions))
        else:
            task = TASKS.get(stage)
            if task is None:
                named_comparison(stage)(run.address, stage, compute, force)
            else:
                task(run.address, compute, force)


def run_part(run: Run, stage: str, compute: Compute, shards: list[int] | None, force: bool) -> None:
    """Do what is left of some shards of a stage, and look at no others.

    Raises:
        TerminalError: shards failed; all the others are done.
    """
    with locks.working_on(run):
        units = run.remaining(stage, shards, force=force)
        failures = _fan_out(run, stage, units, compute, force) if units else {}
        _show_failures(stage, failures)
        if failures:
            raise TerminalError(_explain(run, stage, failures, 1))


def _fan_out(
    run: Run, stage: str, units: list[int], compute: Compute, force: bool
) -> dict[int, str]:
    """Try every shard, a batch a task; return what went wrong, by shard."""
    failures: dict[int, str] = {}
    shared = {"root": run.address, "stage": stage, "compute": compute, "force": force}
    progress = create_progress_artifact(0.0, key=f"{stage}-progress", description=stage)
    with engine(stage, run.address, compute) as found:
        waiting = iter(batches(run, stage, units, compute, found.slots))
        pending: dict[PrefectFuture[Any], list[int]] = {}
        finished: queue.SimpleQueue[PrefectFuture[Any]] = queue.SimpleQueue()
        done = shown = 0
        while done < len(units):
            # Engine and server are told of a few tasks more than can run, not of thousands.
            while len(pending) < found.window and (batch := next(waiting, None)):
                future = found.runner.submit(named_task(stage, batch), {**shared, "shards": batch})
                pending[future] = batch
                future.add_done_callback(finished.put)
            future = finished.get()
            batch = pending.pop(future)
            future.wait()  # only this fetches the final state
            failures |= _failed(run, stage, batch, future.state, force)
            done += len(batch)
            if 100 * done // len(units) > shown:
                shown = 100 * done // len(units)
                update_progress_artifact(progress, 100.0 * done / len(units))
    return failures


def _failed(run: Run, stage: str, batch: list[int], state: Any, force: bool) -> dict[int, str]:
    """What went wrong in a task, by shard."""
    if state.is_completed():
        return {}
    try:
        error = state.result(raise_on_failure=False)
    except Exception as missing:  # a process that was lost left no exception of its own
        error = missing
    if isinstance(error, BatchError):
        return error.failures
    reason = describe(error) if isinstance(error, BaseException) else f"{state.message}"
    return dict.fromkeys(run.remaining(stage, batch, force=force), reason)


def _show_failures(stage: str, failures: dict[int, str]) -> None:
    if failures:
        rows = [{"shard": f"{unit:05d}", "problem": failures[unit]} for unit in sorted(failures)]
        create_table_artifact(rows, key=f"{stage}-failed", description=f"{stage}: failed shards")


def _explain(run: Run, stage: str, failures: dict[int, str], partitions: int) -> str:
    names = [f"{unit:05d}" for unit in sorted(failures)]
    shown = ", ".join(names[:NAMED])
    if len(names) > NAMED:
        shown += f" and {len(names) - NAMED} more"
    command = "prefect deployment run rerun-failed/local --param "
    command += shlex.quote(f"root={run.address}")
    if partitions > 1:
        command += f" --param partitions={partitions}"
    return (
        f"{stage}: {len(names)} of {run.num_units(stage)} shards failed: {shown} "
        f"({failures[min(failures)]}); mend the cause, then "
        f"`{command}` does only what is left"
    )
