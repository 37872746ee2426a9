"""Attempt work: the same for the command line, Prefect tasks, flows and parts of a stage.

A failed shard never stops the others. Its record under `records/` holds the reason, so that any
process can report it; success clears the reason.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import pkgutil
import random
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import copy_context

from datamask.config.compute import Compute
from datamask.errors import DatamaskError, code_of, describe, is_transient, known
from datamask.execution.devices import own_device
from datamask.runs.records import note_failure, read_record, recorded
from datamask.runs.retrying import attempts, retried, warn
from datamask.runs.run import Run
from datamask.runs.stages import STAGES
from datamask.runs.stalls import unless_stuck
from datamask.storage.local import check_no_folder
from datamask.storage.stopping import stoppable_threads
from datamask.storage.temporary import shared_folder

logger = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
"""Called at the start of a stage and after every finished unit: stage, units done, to do."""

MOST_NAMED = 20
"""Maximum number of failed shards in an error; `datamask status RUN --shards` lists all."""


class ShardsFailedError(DatamaskError):
    """Some shards of a stage failed, because of `causes`; the others are finished."""


def shards_failed(
    run: Run, stage: str, failures: Mapping[int, str], command: str = ""
) -> ShardsFailedError:
    """Return the error that names the failed shards (unless all failed), a reason and the remedy.

    *failures*, at least one, of a single round, are the reasons by unit. *command* finishes the
    run; empty: the one of the command line.
    """
    names = [run.unit_label(stage, unit) for unit in sorted(failures)]
    more = f" and {len(names) - MOST_NAMED:,} more" if len(names) > MOST_NAMED else ""
    is_shard = STAGES[stage].each == "shard"
    number = run.num_shards if is_shard else run.num_units(stage)  # of a round, its own alone
    named = f": {', '.join(names[:MOST_NAMED])}{more}" if len(names) < number else ""
    first, command = min(failures), command or f"datamask rerun-failed {shlex.quote(run.address)}"
    of = f"{number:,}" + " shards" * is_shard
    return ShardsFailedError(
        f"{run.folder_of(stage, first)}: {len(names):,} of {of} failed{named} ({failures[first]}); "
        f"fix the cause, then run `{command}`; it resumes where it stopped"
    )


def failures_on_record(
    run: Run, stage: str, units: Iterable[int], reasons: Mapping[int, str], *, force: bool
) -> dict[int, str]:
    """Return the units that failed, with reasons, according to the run's files.

    *reasons* says by unit why its task did not complete; it is used if a lost process left no
    record. With *force*, finished units were repeated: then a unit in *reasons* failed unless its
    record says that it has succeeded since `forget_records`.
    """
    unfinished = run.remaining(stage, units)
    failures = {}
    for unit in sorted({*unfinished, *(reasons if force else ())}):
        record = read_record(run, stage, unit)
        if record is not None and record.failure:
            failures[unit] = record.failure
        elif unit in unfinished or record is None or record.seconds is None:
            failures[unit] = reasons.get(unit, "its task completed, but its file is missing")
    return failures


def steps(
    run: Run, stage: str, shards: Iterable[int] | None, *, force: bool
) -> Iterator[tuple[str, list[int]]]:
    """Yield the steps that remain of a stage: a stage and units that can be done at once.

    There is one step, except for `round`: its rounds alternate with their totals until the corpus
    has settled, which is checked after each step. Units that results of others make necessary are
    another step. In a group of files that are made together, only the first is a unit; with *force*
    all are, and finished units count as remaining. If the work is done shard by shard, only these
    *shards* are included. Empty steps are omitted.
    """
    if stage != "round":
        each = STAGES[stage].each
        units = shards if STAGES[stage].in_parallel else None
        remaining = run.remaining(stage, units, force=force)
        if not remaining:
            logger.info("%s: nothing to do", stage)
        elif STAGES[stage].before:
            pkgutil.resolve_name(STAGES[stage].before)(run)
        # A step that fails raises, so that every step makes all of its units.
        while remaining:
            if each == "file" and not force:
                remaining = sorted(
                    {run.subset_groups[file]: file for file in reversed(remaining)}.values()
                )
            yield stage, remaining
            force = False
            remaining = run.remaining(stage) if each in ("unit", "file") and units is None else []
        return
    number = 0
    while number <= run.last_round:
        if number:
            of_round = run.round_units(number)
            units = of_round if shards is None else [of_round[shard] for shard in shards]
            if remaining := run.remaining("round", units, force=force):
                yield "round", remaining
        if remaining := run.remaining("round_total", [number], force=force):
            yield "round_total", remaining
        number += 1


def attempt(
    run: Run,
    stage: str,
    units: Sequence[int],
    compute: Compute,
    *,
    force: bool = False,
    workers: int = 1,
    progress: Progress | None = None,
    patient: bool = True,
) -> None:
    """Attempt a step (see `steps`): each of its units, *workers* at once, or all in one.

    With *patient*, units that failed for a transient reason are attempted again (`runs.retrying`).

    Raises:
        ShardsFailedError: some failed, after all were attempted.
        DatamaskError: a stage that makes all its units failed.
    """
    failures: dict[int, Exception] = {}
    told, done = set[str](), 0

    def report() -> None:
        if progress:
            progress(run.folder_of(stage, units[0]), done, len(units))

    def attempt_one(unit: int) -> None:
        nonlocal done
        try:
            run_unit(run, stage, unit, compute, force=force)
        except Exception as error:  # A bug of ours must not stop the other shards either.
            failures[unit] = known(error)
            kind = "shard " if STAGES[stage].each == "shard" else ""
            label = (run.folder_of(stage, unit), kind + run.unit_label(stage, unit))
            reason, is_bug = describe(failures[unit]), code_of(failures[unit]) == "bug"
            if reason not in told:  # A reason that all units share is reported once.
                told.add(reason)
                logger.error("%s: %s failed: %s", *label, reason, exc_info=is_bug)
            note_failure(run, stage, unit, failures[unit])
        else:
            done += 1
        report()

    report()
    if not STAGES[stage].in_parallel:
        unit = units[0] if STAGES[stage].each == "round" else None
        work = functools.partial(run_unit, run, stage, unit, compute, force=force)
        with shared_folder(run.root):
            retried(work) if patient else work()
        done = len(units)
        report()
        return
    # Machines that share a run start at different shards, so that they seldom wait for each other.
    first = random.randrange(len(units)) if run.address != str(run.root) else 0
    left = [*units[first:], *units[:first]]
    for is_last in attempts():
        with shared_folder(run.root), stoppable_threads(workers) as pool:
            # By the copied context, Prefect knows the task of a line in the log.
            contexts = (copy_context() for _ in left)
            list(pool.map(lambda context, unit: context.run(attempt_one, unit), contexts, left))
        left = [unit for unit, error in failures.items() if is_transient(error)]
        if not left or is_last or not patient:
            break
        warn(failures[left[0]])
        for unit in left:
            del failures[unit]
    if failures:
        reasons = {unit: describe(error) for unit, error in failures.items()}
        problem = shards_failed(run, stage, reasons)
        problem.causes = tuple(failures.values())
        raise problem from next(iter(failures.values()))


def run_unit(
    run: Run, stage: str, unit: int | None, compute: Compute, *, force: bool = False
) -> None:
    """Do one unit of a stage, or (*unit* None) the rest of a stage that makes all its units.

    Only one process works on a unit at a time; the next one waits and finds it done, unless it has
    *force*. Durations go to `records/`, because an output must not depend on the clock.
    """
    units = None if unit is None else [unit]
    remaining = run.remaining(stage, units, force=force)
    if not remaining:
        return
    for path in (run.root / run.name(stage, number) for number in remaining):
        check_no_folder(path)
    whole_run = STAGES[stage].each != "shard"
    with run.storage.lock(run.lock_of(stage, unit)):
        if not run.remaining(stage, units, force=force):
            logger.info("%s: another process has done it meanwhile", stage)
            return
        name = f"{run.folder_of(stage, unit or 0)}, {run.unit_label(stage, unit or 0)}"

        def work() -> None:
            with (
                run.storage.in_use(compute.mirror_bytes, whole_run=whole_run),
                recorded(run, stage, unit or 0),
            ):
                _work(run, stage, unit, compute, force)

        unless_stuck(work, name if unit is not None else stage, compute.stall_minutes)


def _work(run: Run, stage: str, unit: int | None, compute: Compute, force: bool) -> None:
    # Imported late: torch and DuckDB take seconds to import, which `datamask status` can avoid.
    work: Callable[..., object] = pkgutil.resolve_name(STAGES[stage].work)
    uses_device = STAGES[stage].uses_device(run.settings)
    if uses_device or "torch" in sys.modules:
        from datamask.objectives.threads import share_threads

        # Every task of Ray has a process of its own.
        is_alone = not STAGES[stage].in_parallel or compute.engine == "ray"
        share_threads(1 if is_alone else min(compute.workers, run.num_units(stage)))
    if unit is None:
        for number in range(run.num_units(stage)) if force else ():
            run.storage.remove(run.name(stage, number))
        work(run, compute)
        return
    with own_device(compute) if uses_device else contextlib.nullcontext(compute) as machine:
        work(run, unit, machine)
