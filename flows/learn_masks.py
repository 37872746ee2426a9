"""The flow that learns the masks."""

from prefect import flow

from datamask.config.compute import Compute
from datamask.config.selection import Selection
from datamask.runs.stages import learning_stages
from datamask.storage.location import RootParameter
from flows.orchestration.fan_out import ends_in_one_line, fan_out, with_settings
from flows.orchestration.partitions import Partitions


@flow(name="learn-masks", flow_run_name="masks of {root}")
@ends_in_one_line
def learn_masks(
    root: RootParameter,
    selection: Selection | None = None,
    compute: Compute = Compute(),  # noqa: B008 - immutable
    shards: list[int] | None = None,
    force: bool = False,
    partitions: Partitions = 1,
) -> None:
    """Learn which documents to keep: shard by shard, or in rounds over all of them.

    Args:
        root: the run's folder, or its URL.
        selection: how many are kept, and by which objective; none means as in run.json.
        compute: how the work is done; never changes the result.
        shards: only these shards; none means all that are left.
        force: redo what is done already.
        partitions: child flow runs the shards are dealt to, on as many workers; 1: none.
    """
    run = with_settings(root, compute, selection=selection)
    for stage in learning_stages(run.settings):
        fan_out(run, stage, compute, shards, force, partitions)
