"""The flow that tries other settings on a sample of a run's shards."""

from prefect import flow

from datamask.analysis.sweep_trials import trials
from datamask.config.compute import Compute
from datamask.config.outputs import Sweep
from datamask.evaluation.weights import with_weights
from datamask.report.sweep_page import run_sweep
from datamask.runs.locks import working_on
from datamask.runs.opening import open_run
from datamask.storage.location import RootParameter
from flows.orchestration.artifacts import show_sweep
from flows.orchestration.fan_out import ends_in_one_line
from flows.orchestration.progress import Progress
from flows.stages import evaluate


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
        progress = Progress("sweep", len(trials(run, sweep)))
        page = run_sweep(run, sweep, compute, lambda stage, done, total: progress.show(done))
        show_sweep(run, sweep, page)
