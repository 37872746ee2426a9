"""The flow that makes variants of a run, one for each combination of other settings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect import flow

from datamask.config.compute import Compute
from datamask.execution.sharing import share
from datamask.execution.sweep import Variant, plan_sweep, run_sweep
from datamask.runs.locks import working_on
from datamask.runs.opening import open_run
from datamask.runs.run import Run
from datamask.storage.location import RootParameter
from flows.orchestration.artifacts import show_sweep
from flows.orchestration.fan_out import ends_in_one_line
from flows.stages import finish


@flow(name="sweep", flow_run_name="sweep of {root}")
@ends_in_one_line
def sweep(
    root: RootParameter,
    over: dict[str, list[Any]],
    folder: Path | None = None,
    compute: Compute | None = None,
) -> None:
    """Make a run for each combination of the values in *over*, and compare the runs in a table.

    Args:
        root: the run's folder; its settings are those that are not swept, and its files are shared.
        over: the values to try, by setting, such as {"selection.quality_weight": [0, 0.3]}.
        folder: where the runs are written; none: the run's folder with `-sweep` at its end.
        compute: how the work is done, which never changes the result; none: the defaults.
    """

    def make(variant: Variant, others: Sequence[Run]) -> None:
        made = open_run(variant.root)
        with working_on(made):
            for other in others:
                share(other, made)
        finish(made, compute or Compute())

    run, compute = open_run(root), compute or Compute()
    show_sweep(run, *run_sweep(run, plan_sweep(run, over, compute, folder), make))
