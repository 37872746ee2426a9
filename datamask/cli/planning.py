"""The commands before a run: `init`, and `plan` with its dry run and estimate."""

from __future__ import annotations

import json
from pathlib import Path

import click
import yaml
from rich.filesize import decimal

from datamask.cli.options import (
    RunPlace,
    asked_for,
    config_option,
    format_option,
    output_option,
    own_settings,
    root_argument,
    set_option,
)
from datamask.cli.progress import clock, shown_progress
from datamask.cli.tables import print_rows
from datamask.config.compute import Compute
from datamask.config.loading import load_settings
from datamask.config.settings import Settings
from datamask.errors import SettingsError, together
from datamask.execution.estimate import StageEstimate, estimate
from datamask.planning.first_settings import look, settings_text
from datamask.planning.plan import dry_run as try_plan
from datamask.planning.plan import plan_run
from datamask.planning.preview import PlanPreview, preview
from datamask.runs import locks
from datamask.runs.in_progress import working
from datamask.runs.opening import run_storage
from datamask.runs.stages import stages_of
from datamask.source.convert import FOLDER, convert, source_files
from datamask.source.opening import resolve_path
from datamask.storage.location import Root


@click.command()
@click.argument("source")
@output_option(
    default=Path("datamask.yaml"),
    help="The settings file to write; an existing file is never changed.",
)
def init(source: str, output: Path) -> None:
    """Write a commented settings file from a look at SOURCE.

    SOURCE is a folder, file, glob or URL of Parquet, JSON lines, CSV or Arrow files. Reads footers
    of Parquet files and a few rows.

    \b
    datamask init /data/fineweb -o fineweb.yaml
    datamask init hf://datasets/HuggingFaceFW/fineweb/sample/10BT
    """  # noqa: D301 - click wants the character itself
    if output.exists():
        raise SettingsError(f"{output}: exists already; name another file with --output")
    first = look(source)
    with output.open("x", encoding="utf-8") as file:
        file.write(settings_text(first, str(output)))
    for line in first.lines:
        click.echo(line)
    for problem in first.problems:
        click.echo(f"to do: {problem}")
    click.echo(f"{output} written; next: datamask plan runs/mine --config {output} --dry-run")


@click.command()
@click.argument("source")
@click.argument("folder", type=RunPlace())
@config_option
@set_option
def ingest(source: str, folder: Root, config: Path | None, overrides: tuple[str, ...]) -> None:
    """Convert the JSON lines, CSV and Arrow files of SOURCE to Parquet in FOLDER.

    A launch does the same in its own run; FOLDER serves any number of runs. The same command goes
    on after an interruption, and adds files that are new.

    \b
    datamask ingest /data/dolma pool --set compute.workers=8
    """  # noqa: D301 - click wants the character itself
    settings, compute = load_settings(config, overrides)
    storage = run_storage(folder)
    parquet, others = source_files(source)
    chosen = settings.source.model_copy(update={"path": resolve_path(source)})
    with locks.settings(storage), shown_progress(), working("ingest"):
        copies, _ = convert(others, chosen, storage, compute)
    if parquet:
        click.echo(f"{len(parquet)} files are Parquet already, and were not copied")
    click.echo(f"{len(copies)} files in {storage.address}/{FOLDER}; next: datamask init")


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
    help="Run up to three shards through all stages on this machine, in a temporary folder, and "
    "print time, CPU time and disk space of the whole plan in proportion; write nothing else.",
)
@click.option(
    "--documents",
    type=click.IntRange(min=2),
    default=2000,
    show_default=True,
    help="--estimate: most documents of each shard that are run.",
)
@format_option
def plan(
    root: Root,
    config: Path | None,
    overrides: tuple[str, ...],
    dry_run: bool,
    estimate: bool,
    documents: int,
    form: str,
) -> None:
    """Check the input and divide it into shards. --set changes the settings of an existing RUN.

    \b
    datamask plan runs/mine --config my.yaml --estimate
    """  # noqa: D301 - click wants the character itself
    if not (dry_run or estimate):
        wanted, compute = asked_for(root, config, overrides)
        run = plan_run(root, wanted, compute)
        click.echo(
            f"{run.num_documents} documents in {run.num_shards} shards: {run.address}/plan.parquet"
        )
        return
    settings, compute = load_settings(config, overrides, None if config else own_settings(root))
    if estimate:
        _print_estimate(settings, compute, documents, form)
        return
    tried, are_rows_checked = try_plan(root, settings, compute)
    _print_plan(tried, form)
    if not are_rows_checked:
        click.echo(
            f"not checked: the rows of {tried.settings.source.path} (absent and repeated ids, "
            "missing scores, tokens and groups); a launch reads these columns, and refuses what "
            "does not fit",
            err=True,
        )
    if tried.problems:
        raise together(tried.problems)


def _print_plan(plan: PlanPreview, form: str) -> None:
    """Print settings, shards and disk space as YAML and tables or as JSON; only shards as CSV."""
    chosen = plan.settings.model_dump(mode="json")
    names = ("shard", "documents", "bytes", "files")
    shards = [[shard, 0, 0, 0] for shard in range(plan.num_shards)]
    for piece in plan.pieces:
        row = shards[piece.shard]
        row[1:] = row[1] + piece.rows, row[2] + piece.bytes, row[3] + 1
    if form == "json":
        rows = [dict(zip(names, row, strict=True)) for row in shards]
        stages = stages_of(plan.settings)
        told = {"settings": chosen, "stages": stages, "shards": rows, "disk": plan.disk}
        click.echo(json.dumps(told))
        return
    if form == "csv":
        print_rows(names, shards, form)
        return
    click.echo(yaml.safe_dump(chosen, sort_keys=False).rstrip())
    click.echo(f"\nstages: {', '.join(stages_of(plan.settings))}")
    for line in plan.settings.explained():
        click.echo(f"\n{line}")
    if shards:
        click.echo()
        print_rows(names, ((f"{row[0]:05d}", *row[1:]) for row in shards), form)
    if plan.disk:
        click.echo()
        print_rows(("stage", "bytes on disk (estimate)"), plan.disk.items(), form)


def _print_estimate(settings: Settings, compute: Compute, most: int, form: str) -> None:
    """Print the estimate on standard output, and what it is of on standard error."""
    plan = preview(settings)
    with shown_progress():
        stages, measured = estimate(plan, compute, most)
    click.echo(
        f"{plan.documents:,d} documents in {plan.num_shards:,d} shards, one after another on this "
        f"machine. `measured` was the time of {measured:,d} documents; the other columns are "
        "arithmetic. Not known: other machines, several workers, the network, the training of an "
        "evaluation.",
        err=True,
    )
    names = StageEstimate.__slots__
    rows = [[getattr(stage, name) for name in names] for stage in stages]
    if form == "table":
        names = ("stage", "measured", "time", "CPU time", "disk")
        rows = [[stage, *map(clock, times), decimal(disk)] for stage, *times, disk in rows]
    print_rows(names, rows, form)


COMMANDS = (init, ingest, plan)
