"""The flow that writes the report."""

from pathlib import Path

from prefect import flow
from prefect.artifacts import create_markdown_artifact

from datamask.config import Compute
from flows.stages import ends_in_one_line, run_stage, with_settings


@flow(name="report", flow_run_name="report of {root}")
@ends_in_one_line
def report(
    root: Path,
    compute: Compute = Compute(),  # noqa: B008 - immutable
    force: bool = False,
) -> None:
    """Write the run's page, and show its tables beside the flow run.

    Args:
        root: the run's folder.
        compute: how the work is done; never changes the result.
        force: redo what is done already.
    """
    from datamask.report.markdown import report_markdown

    run = with_settings(root, compute)
    run_stage(run, "report", compute, force=force)
    create_markdown_artifact(report_markdown(run), key="report", description=str(root))
