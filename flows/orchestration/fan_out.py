"""Run a stage under Prefect, and end a flow.

A failed shard never stops the others. After all attempts, the flow ends Failed with one line that
names the failed shards and the command that finishes them. The run folder alone says what remains
and why a shard failed, so a retried or repeated flow does only the rest.
"""

import functools
import logging
import shlex
from collections.abc import Callable
from typing import Any

from prefect.artifacts import create_table_artifact
from prefect.states import Failed

from datamask.config.compute import Compute
from datamask.config.group import Group
from datamask.config.loading import with_groups
from datamask.errors import DatamaskError, known
from datamask.execution.attempts import failures_on_record, shards_failed, steps
from datamask.execution.batches import batches
from datamask.execution.status import counts_line, run_status, shard_table
from datamask.runs import locks
from datamask.runs.opening import open_run
from datamask.runs.records import forget_records
from datamask.runs.run import Run
from datamask.runs.stages import STAGES
from datamask.storage.location import Root
from flows.orchestration.artifacts import titled
from flows.orchestration.events import MOST_SHARDS, tell
from flows.orchestration.partitions import run_parts
from flows.orchestration.progress import Progress, watched
from flows.orchestration.task_runners import failures as failures_of
from flows.orchestration.task_runners import task_runner, tell_of_wait
from tasks.planning import plan_shards
from tasks.stages import task_of

# Prefect attaches its handler to this logger ([tool.prefect] in pyproject.toml), but no level.
logging.getLogger("datamask").setLevel("INFO")


def _is_news(record: logging.LogRecord) -> bool:
    """Return True if Prefect's line adds something to the last line of the flow run.

    After a flow that ends Failed, Prefect logs its error again with a traceback, and before it the
    failure of the task `plan`. Level DEBUG shows both.
    """
    error = record.exc_info[1] if record.exc_info else None
    is_told = isinstance(error, Exception) and is_known(error)
    is_plan = record.levelno == logging.ERROR and vars(record).get("task_run_name") == "plan"
    if not (is_told or is_plan):
        return True
    record.levelno, record.levelname = logging.DEBUG, "DEBUG"
    return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


for _name in ("prefect.flow_runs", "prefect.task_runs"):
    logging.getLogger(_name).addFilter(_is_news)


def _stays_here(record: logging.LogRecord) -> bool:
    """Keep the progress of single units from the server, which gets the progress of their stage."""
    vars(record)["send_to_api"] = False
    return True


logging.getLogger("datamask.progress").addFilter(_stays_here)


def is_known(error: Exception) -> bool:
    """Return True if an error's message names the remedy; then nobody needs its traceback."""
    return isinstance(known(error), DatamaskError | OSError)


def ends_in_one_line(work: Callable[..., Any]) -> Callable[..., Any]:
    """Let a flow that fails for a known reason end Failed with it as message; log its progress."""

    @functools.wraps(work)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            with watched():
                return work(*args, **kwargs)
        except Exception as raised:
            if not is_known(raised):
                raise
            error = known(raised)
            return Failed(message=str(error), data=error)

    return wrapper


def with_settings(root: Root, compute: Compute, **groups: Group | None) -> Run:
    """Open a run; given groups of settings replace the groups in run.json.

    Raises:
        DatamaskError: there is no run, or the settings do not fit the source.
    """
    run = open_run(root)
    if with_groups(run.settings, groups) == run.settings:
        return run
    publishing = groups.get("publication") is not None
    return plan_shards(root, groups, compute, publishing=publishing)


def fan_out(
    run: Run,
    stages: list[str],
    compute: Compute,
    shards: list[int] | None = None,
    force: bool = False,
    partitions: int = 1,
) -> set[str]:
    """Do the rest of stages: in this flow run, or in `partitions` child flow runs.

    With *shards*, only these are done, and a stage that follows unfinished shards is left out.

    Returns:
        The stages that were not done.

    Raises:
        ShardsFailedError: shards failed; all the others are done.
        DatamaskError: a stage that looks at every shard failed.
    """
    all_worked = set[str]()
    for stage in stages:
        by_shard, worked = STAGES[stage].each == "shard", 0
        with locks.working_on(run):
            for name, units in steps(run, stage, shards if by_shard else None, force=force):
                worked += len(units)
                if not STAGES[name].in_parallel:
                    tell_of_wait(name)
                    do: Any = task_of(run, name, units)
                    do(run.address, name, units, compute, force)
                    continue
                if force:
                    forget_records(run, name, units)
                try:
                    run_units(run, name, units, compute, force, partitions)
                finally:
                    status = run_status(run)
                    table = shard_table(status)
                    title = titled(run, "shards", f": {counts_line(status)}")
                    create_table_artifact(table, **title)
        if shards is not None and by_shard and run.remaining(stage):
            break
        if worked:
            all_worked.add(stage)
            tell(run, "stage.completed", stage=stage, units=worked)
    return all_worked


def run_units(
    run: Run, stage: str, units: list[int], compute: Compute, force: bool, partitions: int = 1
) -> None:
    """Attempt units of a stage, one shard each, and show those that fail.

    Raises:
        ShardsFailedError: shards failed; all the others are done.
    """
    if partitions > 1:
        reasons = run_parts(run, stage, units, compute, force, partitions)
    else:
        shared = {"root": run.address, "stage": stage, "compute": compute, "force": force}
        with task_runner(stage, run.address, compute) as (runner, slots):
            calls = (
                (batch, task_of(run, stage, batch), {**shared, "units": batch})
                for batch in batches(run, stage, units, slots)
            )
            reasons = failures_of(runner, calls, Progress(run, stage, len(units)))
    failures = failures_on_record(run, stage, units, reasons, force=force)
    if not failures:
        return
    rows = [{"shard": run.unit_label(stage, unit), "problem": failures[unit]} for unit in failures]
    for row in rows[:MOST_SHARDS]:
        tell(run, "shard.failed", stage=stage, **row)
    folder = run.folder_of(stage, units[0])
    create_table_artifact(rows, **titled(run, f"{folder}-failed", f": {folder}: failed shards"))
    parameter = shlex.quote(f"root={run.address}")
    command = f"prefect deployment run rerun-failed/local --param {parameter}"
    if partitions > 1:
        command += f" --param partitions={partitions}"
    raise shards_failed(run, stage, failures, command)
