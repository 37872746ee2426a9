"""The flow that finishes a run in which shards failed."""

from prefect import flow

from datamask.config.compute import Compute
from datamask.runs.opening import open_run
from datamask.runs.stages import SHARD_STAGES
from datamask.storage.location import RootParameter
from flows.every_stage import finish
from flows.orchestration.fan_out import ends_in_one_line
from flows.orchestration.partitions import Partitions, check_deployments
from tasks.planning import plan_shards


@flow(name="rerun-failed", flow_run_name="finish {root}")
@ends_in_one_line
def rerun_failed(
    root: RootParameter,
    compute: Compute = Compute(),  # noqa: B008 - immutable
    partitions: Partitions = 1,
) -> None:
    """Do what is left of a run with its own settings, then merge, report and publish.

    Args:
        root: the run's folder, or its URL.
        compute: how the work is done; never changes the result.
        partitions: child flow runs that shards are dealt to, on as many workers; 1: none.
    """
    if partitions > 1:
        check_deployments(SHARD_STAGES)
    open_run(root)
    finish(plan_shards(root, {}, compute), compute, partitions)
