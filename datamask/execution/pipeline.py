"""The whole run as one function, for Python, the command line and the demo.

Prefect's flows drive the same stages through `run_unit`; here they run in this process. Both ask
the run folder what is left, so one may finish what the other began.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import random
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from datamask.config.compute import Compute
from datamask.config.settings import Settings
from datamask.errors import DatamaskError, SettingsError, TerminalError
from datamask.execution.devices import check_device, own_device
from datamask.runs import locks
from datamask.runs.orphans import remove_orphans
from datamask.runs.records import recorded
from datamask.runs.run import Run, create_run, open_run, run_storage
from datamask.runs.stages import STAGES
from datamask.storage.location import Root

if TYPE_CHECKING:
    from datamask.planning.plan import Change

from datamask.runs.stages import ON_DEVICE, RUN_WORK, SHARD_WORK, stages_of

logger = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
"""Told of every finished unit: stage, units done, units to do."""


MOST_NAMED = 20
"""Most failed shards that an error names; `datamask status RUN --shards` lists all."""


class ShardsFailedError(TerminalError):
    """Some shards of a stage failed; the others are finished and stay so."""

    def __init__(self, root: Root, stage: str, failures: dict[int, str], num_units: int) -> None:
        self.stage = stage
        self.failures = failures
        shards = ", ".join(f"{unit:05d}" for unit in sorted(failures)[:MOST_NAMED])
        if len(failures) > MOST_NAMED:
            shards += f" and {len(failures) - MOST_NAMED} more"
        first = failures[min(failures)]
        super().__init__(
            f"{stage}: {len(failures)} of {num_units} shards failed: {shards} ({first}); mend the "
            f"cause, then `datamask rerun-failed {root}` does only what is left"
        )


def _load(target: str) -> Callable[..., object]:
    # Imported when used: torch and DuckDB cost seconds that `datamask status` need not pay.
    module, _, name = target.partition(":")
    function: Callable[..., object] = getattr(importlib.import_module(module), name)
    return function


def run_unit(
    run: Run, stage: str, unit: int | None, compute: Compute, *, force: bool = False
) -> None:
    """Do one shard of a stage, or what is left of one that looks at every shard (*unit* None).

    Whoever comes second to the same work waits, finds it done and leaves it; *force* does it
    again. How it went is noted under `timings/` and `logs/`, beside the outputs, because an
    output's bytes must not depend on the clock.
    """
    units = None if unit is None else [unit]
    if not run.remaining(stage, units, force=force):
        return
    with locks.unit_of_work(run.storage, stage, unit):
        if not run.remaining(stage, units, force=force):
            logger.info("%s: done by another process meanwhile", stage)
            return
        with (
            run.storage.in_use(compute.mirror_bytes, whole_run=unit is None),
            recorded(run, stage, unit or 0),
        ):
            _work(run, stage, unit, compute, force)


def _work(run: Run, stage: str, unit: int | None, compute: Compute, force: bool) -> None:
    number = STAGES[stage].round
    rest = () if number is None else (number,)
    if unit is None:
        for one in range(run.num_units(stage)) if force else ():
            run.storage.remove(run.name(stage, one))
        _load(RUN_WORK[stage])(run, compute, *rest)
    elif stage in ON_DEVICE:
        with own_device(compute) as machine:
            _load(SHARD_WORK[stage])(run, unit, machine, *rest)
    else:
        _load(SHARD_WORK[stage])(run, unit, compute, *rest)


def _check_engine(compute: Compute) -> None:
    if compute.engine != "threads":
        raise SettingsError(
            f"compute.engine: {compute.engine} is an engine of the Prefect flows "
            "(deployments/README.md); here give `threads`, with compute.workers"
        )


def run_stage(
    run: Run,
    stage: str,
    compute: Compute,
    *,
    shards: Iterable[int] | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> None:
    """Do what is left of a stage. One bad shard does not stop the others.

    Raises:
        ShardsFailedError: after all other shards were tried.
        DatamaskError: a stage that looks at every shard failed.
    """
    _check_engine(compute)
    units = run.remaining(stage, shards if stage in SHARD_WORK else None, force=force)
    if not units:
        logger.info("%s: nothing to do", stage)
        return
    if stage in RUN_WORK:
        run_unit(run, stage, None, compute, force=force)
        if progress:
            progress(stage, len(units), len(units))
        return
    failures: dict[int, str] = {}
    done = 0

    def attempt(unit: int) -> None:
        nonlocal done
        try:
            run_unit(run, stage, unit, compute, force=force)
        except (DatamaskError, OSError) as error:
            logger.error("%s: shard %05d failed: %s", stage, unit, error)
            failures[unit] = f"{error}"
        except Exception as error:  # also a mistake of ours must not stop the other shards
            logger.exception("%s: shard %05d failed", stage, unit)
            failures[unit] = " ".join(f"{type(error).__name__}: {error}".split())
        done += 1
        if progress:
            progress(stage, done, len(units))

    # Machines that share a run begin at different shards, so that they seldom wait for each other.
    first = random.randrange(len(units))
    with ThreadPoolExecutor(compute.workers) as pool:
        list(pool.map(attempt, [*units[first:], *units[:first]]))
    if failures:
        raise ShardsFailedError(run.address, stage, failures, run.num_units(stage))


def rebuild(
    root: Root,
    settings: Settings | Change | None = None,
    compute: Compute | None = None,
    *,
    origin: Root | None = None,
    progress: Progress | None = None,
    at_end: Callable[[Run], object] = lambda run: None,
) -> Run:
    """Everything from text to published subset; whatever is done already is left alone.

    Args:
        root: the run's folder, or its URL (s3://bucket/prefix, gs://...).
        settings: what to make, or how that follows from the folder's own settings; None continues
            with these.
        compute: how to make it.
        origin: another run on this machine: a new one starts from its settings, and shares the
            files that are the same.
        progress: called after every unit of work.
        at_end: called when all is done, before another launch can change the run's settings.

    Raises:
        ShardsFailedError: some shards of a stage failed; later stages were not begun.
        DatamaskError: any other failure, in one line.
    """
    from datamask.execution.sharing import check_sharing, share
    from datamask.planning.plan import plan_run

    compute = compute or Compute()
    other = None
    if origin is not None:
        check_sharing(origin, root)
        other = open_run(origin)
    checks = (lambda: check_device(compute), lambda: _check_engine(compute))
    run = plan_run(root, settings, compute, origin=other, checks=checks)
    with locks.working_on(run):
        remove_orphans(run.root)
        if other is not None:
            share(other, run)
        for stage in stages_of(run.settings):
            run_stage(run, stage, compute, progress=progress)
        at_end(run)
    return run


def rewrite_report(root: Root, compute: Compute, change: Change | None = None) -> Run:
    """Write the report again.

    Args:
        root: the run's folder, or its URL.
        compute: how to make it.
        change: makes other settings from the run's own; they are in run.json once the report is
            written.

    Raises:
        RunError: settings are to change while somebody works in the run.
        DatamaskError: any other failure; then run.json is as it was.
    """
    with contextlib.ExitStack() as held:
        if change is None:
            run = open_run(root)
            held.enter_context(locks.working_on(run))
        else:
            storage = run_storage(root)
            held.enter_context(locks.settings(storage))
            held.enter_context(locks.alone(storage))
            run = open_run(root)
            run = replace(run, settings=change(run.settings))
        run_stage(run, "composition", compute)
        run_stage(run, "report", compute, force=True)
        if change is not None:
            create_run(root, run.settings, run.pins)
    return run
