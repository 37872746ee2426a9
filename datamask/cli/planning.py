"""The command `plan`: shards and disk space, or the estimate."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING

import click

from datamask.cli.options import (
    asked_for,
    config_option,
    format_option,
    own_settings,
    root_argument,
    set_option,
)
from datamask.cli.progress import shown_progress

if TYPE_CHECKING:
    from datamask.config.compute import Compute
    from datamask.config.settings import Settings
    from datamask.planning.preview import PlanPreview
    from datamask.storage.location import Root


@click.command()
@root_argument
@config_option
@set_option
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print settings, shards and disk space, and all problems that a launch would refuse; "
    "write nothing. Rows of a source at a URL are not read.",
)
@click.option(
    "--estimate",
    is_flag=True,
    help="Print time, CPU and GPU hours, disk and network of every stage, measured by running all "
    "stages on rows of up to three shards on this machine; write nothing.",
)
@click.option(
    "--machines",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="--estimate: machines like this one, each with compute.workers and compute.gpus.",
)
@click.option(
    "--calibration-seconds",
    type=click.FloatRange(min=0),
    default=50,
    show_default=True,
    help="--estimate: approximate time for the measurement.",
)
@format_option
def plan(
    root: Root,
    config: Path | None,
    overrides: tuple[str, ...],
    dry_run: bool,
    estimate: bool,
    machines: int,
    calibration_seconds: float,
    form: str,
) -> None:
    """Check the input and divide it into shards. --set changes the settings of an existing RUN.

    \b
    datamask plan runs/mine --config my.yaml --estimate --set compute.workers=8 --machines 48
    """  # noqa: D301 - click wants the character itself
    from datamask.config.loading import load_settings
    from datamask.errors import together
    from datamask.planning.plan import dry_run as try_plan
    from datamask.planning.plan import plan_run

    if not (dry_run or estimate):
        wanted, compute = asked_for(root, config, overrides)
        run = plan_run(root, wanted, compute)
        click.echo(
            f"{run.num_documents} documents in {run.num_shards} shards: {run.address}/plan.parquet"
        )
        return
    settings, compute = load_settings(config, overrides, None if config else own_settings(root))
    if estimate:
        _print_estimate(settings, compute, machines, calibration_seconds, form)
        return
    found, problems, are_rows_checked = try_plan(root, settings, compute)
    _print_plan(found, form)
    if not are_rows_checked:
        click.echo(
            f"not checked: the rows of {found.settings.source.path} (absent and repeated ids, "
            "missing scores, tokens and groups); a launch reads these columns, and refuses what "
            "does not fit",
            err=True,
        )
    if problems:
        raise together(problems)


def _print_plan(found: PlanPreview, form: str) -> None:
    """Print settings, shards and disk space as YAML and tables or as JSON; only shards as CSV."""
    import json

    import yaml

    from datamask.cli.tables import print_rows
    from datamask.runs.stages import stages_of

    chosen = found.settings.model_dump(mode="json")
    names = ("shard", "documents", "bytes", "files")
    shards = [[shard, 0, 0, 0] for shard in range(found.num_shards)]
    for piece in found.pieces:
        row = shards[piece.shard]
        row[1:] = row[1] + piece.rows, row[2] + piece.bytes, row[3] + 1
    if form == "json":
        rows = [dict(zip(names, row, strict=True)) for row in shards]
        stages = stages_of(found.settings)
        told = {"settings": chosen, "stages": stages, "shards": rows, "disk": found.disk}
        click.echo(json.dumps(told))
        return
    if form == "csv":
        print_rows(names, shards, form)
        return
    click.echo(yaml.safe_dump(chosen, sort_keys=False).rstrip())
    click.echo(f"\nstages: {', '.join(stages_of(found.settings))}")
    if shards:
        click.echo()
        print_rows(names, ((f"{row[0]:05d}", *row[1:]) for row in shards), form)
    if found.disk:
        click.echo()
        print_rows(("stage", "bytes on disk (estimate)"), found.disk.items(), form)


def _print_estimate(
    settings: Settings, compute: Compute, machines: int, seconds: float, form: str
) -> None:
    """Print the forecast on standard output and its assumptions on standard error."""
    from datamask.cli.tables import print_rows
    from datamask.estimate import forecast
    from datamask.planning.preview import preview

    found = preview(settings)
    with shown_progress():
        stages, calibration = forecast.estimate(found, compute, machines=machines, seconds=seconds)
    for line in forecast.basis(found, calibration, forecast.fleet_of(compute, machines)):
        click.echo(line, err=True)
    if form == "table":
        print_rows(forecast.HEADINGS, forecast.readable_rows(stages), form)
    else:
        print_rows(forecast.NAMES, map(astuple, stages), form)
