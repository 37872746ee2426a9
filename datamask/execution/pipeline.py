"""Run everything with one function, for Python, the command line and the demo.

Prefect's flows attempt the same steps (`execution.attempts`); here they run in this process. For
both, the run's files alone say what remains, so one may finish what the other began.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from datamask.config.compute import Compute
from datamask.config.settings import Settings
from datamask.errors import SettingsError
from datamask.execution.attempts import Progress, attempt, steps
from datamask.execution.devices import check_device
from datamask.runs import locks
from datamask.runs.in_progress import working
from datamask.runs.opening import open_run
from datamask.runs.retrying import retried
from datamask.runs.run import Run
from datamask.runs.stages import stages_of
from datamask.storage.location import Root
from datamask.storage.temporary import remove_orphans

if TYPE_CHECKING:
    from datamask.planning.plan import Change


def _check_engine(compute: Compute) -> None:
    if compute.engine != "threads":
        raise SettingsError(
            f"compute.engine: {compute.engine} is an engine of the Prefect flows "
            "(deployments/README.md); use `threads` here, with compute.workers"
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
    """Do the rest of a stage. A failed shard does not stop the others.

    Raises:
        ShardsFailedError: shards failed; all others are done.
        DatamaskError: a stage that reads every shard failed.
    """
    _check_engine(compute)
    for name, units in steps(run, stage, shards, force=force):
        attempt(run, name, units, compute, force=force, workers=compute.workers, progress=progress)


def rebuild(
    root: Root,
    settings: Settings | Change | None = None,
    compute: Compute | None = None,
    *,
    origin: Root | None = None,
    extend: bool = False,
    progress: Progress | None = None,
    sharing: Iterable[Run] = (),
    shards: Sequence[int] | None = None,
    at_start: Callable[[Run], object] = lambda run: None,
    at_end: Callable[[Run], object] = lambda run: None,
    publishing: bool = True,
) -> Run:
    """Do everything that is not done, from text to published subset.

    Args:
        root: the run's folder or URL (s3://bucket/prefix, gs://...).
        settings: the new settings, or a function of the run's own; None keeps those.
        compute: how to compute.
        origin: another run on this machine; a new run starts from its settings and shares the files
            that are the same.
        extend: if True, files that were added to the source become further shards (`plan_run`).
        progress: called as `Progress` describes.
        sharing: further runs on this machine, whose files are shared if they are the same.
        shards: learn the masks of these only, and leave out the stages after them.
        at_start: called when the run is planned, before its first stage.
        at_end: called when all is done, before another launch can change the run's settings.
        publishing: if False, do not publish, even if the settings do.

    Raises:
        ShardsFailedError: some shards of a stage failed; later stages were not started.
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
    with working("plan"):
        planned = functools.partial(plan_run, origin=other, extend=extend, checks=checks)
        run = retried(lambda: planned(root, settings, compute, publishing=publishing))
    with locks.working_on(run):
        remove_orphans(run.root)
        for one in (*([other] if other else []), *sharing):
            share(one, run)
        at_start(run)
        for stage in stages_of(run.settings, last="selection" if shards else "publication"):
            if stage != "publication" or publishing:
                of = shards if stage == "selection" else None
                run_stage(run, stage, compute, shards=of, progress=progress)
        at_end(run)
    return run


def rewrite_report(root: Root, compute: Compute) -> Run:
    """Write the report of a run again. Errors are as in its stages."""
    run = open_run(root)
    with locks.working_on(run):
        for stage in ("documents", "composition", "report"):
            run_stage(run, stage, compute, force=stage == "report")
    return run
