"""The flow that writes the report."""

from prefect import flow

from datamask.config.compute import Compute
from datamask.config.outputs import Report
from datamask.storage.location import RootParameter
from flows.orchestration.artifacts import show_report
from flows.orchestration.fan_out import ends_in_one_line, fan_out, with_settings


@flow(name="report", flow_run_name="report of {root}")
@ends_in_one_line
def report(
    root: RootParameter,
    report: Report | None = None,
    compute: Compute = Compute(),  # noqa: B008 - immutable
    force: bool = False,
) -> None:
    """Write the run's page and pictures, and show them beside the flow run.

    Args:
        root: the run's folder, or its URL.
        report: how closely it is looked at; none means as in run.json.
        compute: how the work is done; never changes the result.
        force: redo what is done already.
    """
    run = with_settings(root, compute, report=report)
    fan_out(run, "report", compute, force=force)
    show_report(run)
