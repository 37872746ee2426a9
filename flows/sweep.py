"""The flow that tries other settings on a sample of a run's shards."""

import logging
from typing import Any

from prefect import flow
from prefect.task_runners import ThreadPoolTaskRunner

from datamask.analysis import sweep_trials
from datamask.config.compute import Compute
from datamask.config.outputs import Sweep
from datamask.errors import TerminalError
from datamask.evaluation.weights import with_weights
from datamask.report.sweep_page import write_sweep
from datamask.runs.locks import working_on
from datamask.runs.opening import open_run
from datamask.runs.run import Run
from datamask.storage.location import RootParameter
from flows.orchestration.artifacts import show_sweep
from flows.orchestration.fan_out import ends_in_one_line
from flows.orchestration.progress import Progress
from flows.orchestration.task_runners import failures
from flows.stages import evaluate
from tasks.stages import try_choice


@flow(name="sweep", flow_run_name="sweep of {root}")
@ends_in_one_line
def sweep(
    root: RootParameter,
    sweep: Sweep = Sweep(),  # noqa: B008 - immutable
    compute: Compute = Compute(),  # noqa: B008 - immutable
) -> None:
    """Learn masks for several lambdas and seeds, and recommend one; embed nothing.

    Args:
        root: the folder or URL of a run whose quality and embeddings are done; with `by:
            evaluation` one whose subset is written.
        sweep: the settings to try.
        compute: how the work is done; never changes the result.
    """
    run = open_run(root)
    if sweep.by == "evaluation":
        wanted = with_weights(run.settings.evaluation, sweep.quality_weights)
        evaluate(root, evaluation=wanted, compute=compute)
        run = open_run(root)
    with working_on(run):
        _try_all(run, sweep, compute)
        page = write_sweep(run, sweep)
        show_sweep(run, sweep, page)


def _try_all(run: Run, sweep: Sweep, compute: Compute) -> None:
    """Do every missing trial, `compute.workers` at once.

    Raises:
        TerminalError: a trial failed; the others are done.
    """
    wanted = sweep_trials.trials(run, sweep)
    trials = [trial for trial in wanted if not sweep_trials.is_tried(run, sweep, trial)]
    logging.getLogger("datamask").info("sweep: %d trials to do", len(trials))
    if not trials:
        return
    shared = {"root": run.address, "sweep": sweep, "compute": compute}
    with ThreadPoolTaskRunner[Any](max_workers=compute.workers) as runner:
        calls = (([trial.name], try_choice, {**shared, "trial": trial}) for trial in trials)
        reasons = failures(runner, calls, Progress("sweep", len(trials)))
    if reasons:
        name, reason = next(iter(reasons.items()))
        raise TerminalError(
            f"sweep: {len(reasons)} of {len(trials)} trials failed, first {name} ({reason}); "
            "fix the cause and run the sweep again; it resumes where it stopped"
        )
