"""The flow that writes the selected documents."""

from prefect import flow

from datamask.config.compute import Compute
from datamask.config.outputs import Subset
from datamask.storage.location import RootParameter
from flows.orchestration.fan_out import ends_in_one_line, fan_out, with_settings


@flow(name="merge-subset", flow_run_name="subset of {root}")
@ends_in_one_line
def merge_subset(
    root: RootParameter,
    subset: Subset | None = None,
    compute: Compute = Compute(),  # noqa: B008 - immutable
    force: bool = False,
) -> None:
    """Join the masks to the source's rows, write the subset, and tabulate what it is made of.

    Args:
        root: the run's folder, or its URL.
        subset: how the files are written; none means as in run.json.
        compute: how the work is done; never changes the result.
        force: redo what is done already.
    """
    run = with_settings(root, compute, subset=subset)
    fan_out(run, "subset", compute, force=force)
    fan_out(run, "composition", compute, force=force)
