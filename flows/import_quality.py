"""The flow that gathers quality scores and prunes the worst documents."""

from prefect import flow

from datamask.config.compute import Compute
from datamask.config.inputs import Quality
from datamask.runs.stages import stages_of
from datamask.storage.location import RootParameter
from flows.orchestration.fan_out import ends_in_one_line, fan_out, with_settings
from flows.orchestration.partitions import Partitions


@flow(name="import-quality", flow_run_name="quality of {root}")
@ends_in_one_line
def import_quality(
    root: RootParameter,
    quality: Quality | None = None,
    compute: Compute = Compute(),  # noqa: B008 - immutable
    shards: list[int] | None = None,
    force: bool = False,
    partitions: Partitions = 1,
) -> None:
    """Classify the documents where settings say so, import all scores, combine them, and prune.

    Args:
        root: the run's folder, or its URL.
        quality: which scores count and how much is pruned; none means as in run.json.
        compute: how the work is done; never changes the result.
        shards: only these shards' scores; none means all that are left.
        force: redo what is done already.
        partitions: child flow runs the shards are dealt to, on as many workers; 1: none.
    """
    run = with_settings(root, compute, quality=quality)
    for stage in stages_of(run.settings):
        if stage in ("classifier_scores", "scores"):
            fan_out(run, stage, compute, shards, force, partitions)
    if not run.remaining("scores"):
        fan_out(run, "quality", compute, force=force)
