"""The flow that gathers quality scores and prunes the worst documents."""

from prefect import flow

from datamask.config.compute import Compute
from datamask.config.inputs import Quality
from datamask.runs.stages import STAGES, stages_of
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
    """Import the scores of every shard, screen its text, combine over the corpus, and prune.

    Args:
        root: the run's folder, or its URL.
        quality: which scores count and how much is pruned; none means as in run.json.
        compute: how the work is done; never changes the result.
        shards: only these shards' scores and texts; none means all that are left.
        force: redo what is done already.
        partitions: child flow runs the shards are dealt to, on as many workers; 1: none.
    """
    run = with_settings(root, compute, quality=quality)
    stages = stages_of(run.settings)
    for stage in stages[: stages.index("quality") + 1]:
        if STAGES[stage].each == "shard":
            fan_out(run, stage, compute, shards, force, partitions)
            if run.remaining(stage):
                return
        else:
            fan_out(run, stage, compute, force=force)
