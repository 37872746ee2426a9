"""The flow that processes some shards of a stage: one part of a stage with `partitions`."""

from prefect import flow

from datamask.config.compute import Compute
from datamask.errors import SettingsError
from datamask.runs import locks
from datamask.runs.opening import open_run
from datamask.runs.stages import PARALLEL_STAGES
from datamask.storage.location import RootParameter
from flows.orchestration.fan_out import ends_in_one_line, run_units
from flows.orchestration.partitions import FLOW


@flow(name=FLOW)
@ends_in_one_line
def work_on_shards(
    root: RootParameter,
    stage: str,
    compute: Compute = Compute(),  # noqa: B008 - immutable
    units: list[int] | None = None,
    force: bool = False,
) -> None:
    """Process some shards of a stage. Usually started by a flow run with `partitions`.

    Args:
        root: the run's folder or URL.
        stage: one that is done shard by shard.
        compute: how the work is done; never changes the result.
        units: only these units; none means all that are left. A unit is a shard; in stage `round`
            it is (round - 1) · number of shards + shard.
        force: repeat finished work.
    """
    if stage not in PARALLEL_STAGES:
        raise SettingsError(f"stage: {stage} has no shards; one of {', '.join(PARALLEL_STAGES)}")
    run = open_run(root)
    with locks.working_on(run):
        if left := run.remaining(stage, units, force=force):
            run_units(run, stage, left, compute, force)
