"""The flow that finishes a run in which shards failed."""

from pathlib import Path

from prefect import flow

from datamask.config import Compute
from datamask.store import open_run
from flows.every_stage import finish
from flows.stages import ends_in_one_line
from tasks.planning import plan_shards


@flow(name="rerun-failed", flow_run_name="finish {root}")
@ends_in_one_line
def rerun_failed(
    root: Path,
    compute: Compute = Compute(),  # noqa: B008 - immutable
) -> None:
    """Do what is left of a run with its own settings, then merge, report and publish.

    Args:
        root: the run's folder.
        compute: how the work is done; never changes the result.
    """
    plan_shards(root, open_run(root).settings, compute)
    finish(root, compute)
