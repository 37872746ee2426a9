"""The commands before a run: `init`, and `plan` with its dry run and estimate."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
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
from datamask.cli.progress import shown_progress
from datamask.cli.terminal import print_rows, print_text
from datamask.config.compute import Compute
from datamask.config.loading import load_settings
from datamask.config.settings import Settings
from datamask.errors import DatamaskError, SettingsError, together
from datamask.evaluation.models import training_explained
from datamask.execution.estimate import StageEstimate, estimate
from datamask.execution.progress import clock
from datamask.planning.first_settings import look, settings_text
from datamask.planning.plan import dry_run as try_plan
from datamask.planning.plan import plan_run
from datamask.planning.preview import PlanPreview, preview
from datamask.runs import locks
from datamask.runs.in_progress import working
from datamask.runs.opening import run_storage
from datamask.runs.stages import stages_of
from datamask.runs.subset_files import expected_documents
from datamask.source.convert import NotConvertedError, convert, source_files
from datamask.source.opening import resolve_path
from datamask.source.originals import FOLDER
from datamask.storage.location import Root

MOST_SHARDS, MOST_FOLDERS = 20, 3
"""Maximum number of shards, and of folders of the run with their sizes, that a dry run names."""


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
    first, name = look(source), shlex.quote(str(output))
    with output.open("x", encoding="utf-8") as file:
        file.write(settings_text(first, name))
    for line in (*first.lines, *(f"to do: {problem}" for problem in first.problems)):
        print_text(line)
    click.echo(f"{output} written; next: datamask plan runs/mine --config {name} --dry-run")


@click.command()
@click.argument("source")
@click.argument("folder", type=RunPlace())
@config_option
@set_option
def ingest(source: str, folder: Root, config: Path | None, overrides: tuple[str, ...]) -> None:
    """Convert the files of SOURCE to Parquet in FOLDER.

    SOURCE has JSON lines, CSV, Arrow or Lance. A launch does the same in its own run; FOLDER serves
    any number of runs. The same command goes on after an interruption, and adds files that are new.

    \b
    datamask ingest /data/dolma pool --set compute.workers=8
    """  # noqa: D301 - click wants the character itself
    settings, compute = load_settings(config, overrides)
    storage = run_storage(folder)
    parquet, others = source_files(source)
    path = resolve_path(source)
    chosen = settings.source.model_copy(update={"path": path})
    with locks.settings(storage), shown_progress(), working("ingest"):
        copies, _ = convert(path, others, chosen, storage, compute)
    if parquet:
        click.echo(f"{len(parquet):,} files are Parquet already, and were not copied")
    click.echo(f"{len(copies):,} files in {storage.address}/{FOLDER}")
    click.echo(f"next: datamask init {shlex.quote(f'{storage.address}/{FOLDER}')}")


@click.command()
@root_argument
@config_option
@set_option
@click.option(
    "--dry-run",
    is_flag=True,
    help="Say whether a launch would start, with all problems that it would refuse, what would be "
    "selected, shards and disk space; write nothing. Rows of a source at a URL are not read.",
)
@click.option(
    "--settings", "with_settings", is_flag=True, help="--dry-run: also print all settings."
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
    with_settings: bool,
    estimate: bool,
    documents: int,
    form: str,
) -> None:
    """Check the input, divide it into shards, estimate the time.

    --set changes the settings of an existing RUN.

    \b
    datamask plan runs/mine --config my.yaml --estimate
    """  # noqa: D301 - click wants the character itself
    if not (dry_run or estimate):
        wanted, compute = asked_for(root, config, overrides)
        run = plan_run(root, wanted, compute)
        click.echo(
            f"{run.num_documents:,d} documents in {run.num_shards:,d} shards: "
            f"{run.address}/plan.parquet"
        )
        return
    settings, compute = load_settings(config, overrides, None if config else own_settings(root))
    if estimate:
        _print_estimate(settings, compute, documents, form)
        return
    tried, are_rows_checked = try_plan(root, settings, compute)
    _print_plan(tried, form, with_settings=with_settings)
    if not are_rows_checked:
        print_text(
            f"not checked: the rows of {tried.settings.source.path} (absent and repeated ids, "
            "missing scores, tokens and groups); a launch reads these columns, and refuses what "
            "does not fit",
            to_stderr=True,
        )
    if tried.problems and _must_convert(tried.problems):
        for problem in tried.problems:  # A launch converts by itself.
            print_text(f"not checked: {problem}", to_stderr=True)
    elif tried.problems:
        raise together(tried.problems)


def _print_plan(plan: PlanPreview, form: str, *, with_settings: bool) -> None:
    """Print a plan: everything as JSON; the shards as CSV; else the answer first.

    As text, settings are printed if they are asked for, and the first `MOST_SHARDS` shards.
    """
    chosen = plan.settings.model_dump(mode="json")
    if plan.settings.weight_follows:
        chosen["selection"]["quality_weight"] = None
    names = ("shard", "documents", "bytes", "files")
    shards = [[shard, 0, 0, 0] for shard in range(plan.num_shards)]
    for piece in plan.pieces:
        row = shards[piece.shard]
        row[1:] = row[1] + piece.rows, row[2] + piece.bytes, row[3] + 1
    stages = stages_of(plan.settings)
    if form == "json":
        rows = [dict(zip(names, row, strict=True)) for row in shards]
        told = {"settings": chosen, "stages": stages, "shards": rows, "disk": plan.disk}
        click.echo(json.dumps(told))
        return
    if form == "csv":
        print_rows(names, shards, form)
        return
    print_text(_verdict(plan.problems))
    if shards:
        print_text(_amounts(plan))
    for line in (*plan.settings.explained(), *training_explained(plan.settings.evaluation)):
        print_text(line)
    print_text(f"Stages: {', '.join(stages)}.")
    if shards:
        click.echo()
        print_rows(names, ((f"{row[0]:05d}", *row[1:]) for row in shards[:MOST_SHARDS]), form)
        if plan.num_shards > MOST_SHARDS:
            click.echo(f"{plan.num_shards - MOST_SHARDS:,d} more; --format csv lists all")
    if with_settings:
        click.echo(f"\n{yaml.safe_dump(chosen, sort_keys=False).rstrip()}")
    else:
        click.echo("\nall settings: add --settings")


def _must_convert(problems: Sequence[DatamaskError]) -> bool:
    """Return True if the only problem is that a launch converts the source first."""
    return all(isinstance(problem, NotConvertedError) for problem in problems)


def _verdict(problems: Sequence[DatamaskError]) -> str:
    """Say in a sentence whether a launch can start."""
    if not problems:
        return "No problem was found; a launch can start."
    if _must_convert(problems):
        return "Little was checked: a launch converts the source's files first (below)."
    reasons = f"{len(problems)} reason{'s' * (len(problems) > 1)}"
    return f"A launch would be refused, for {reasons} (below)."


def _amounts(plan: PlanPreview) -> str:
    """Say in a sentence: documents, shards, what would be selected, and disk space."""
    shards = f"{plan.num_shards:,d} shard{'s' * (plan.num_shards != 1)}"
    text = f"{plan.documents:,d} documents ({decimal(plan.bytes)}) in {shards}"
    selection = plan.settings.selection
    if plan.disk and not selection.mask_model:
        kept = expected_documents(selection, plan.documents, plan.bytes)
        text += f", of which {'about ' * (selection.tokens is not None)}{kept:,d} would be selected"
    if plan.disk:
        most = sorted(plan.disk.items(), key=lambda item: -item[1])[:MOST_FOLDERS]
        named = ", ".join(f"{name} {decimal(size)}" for name, size in most)
        text += f". The run would need about {decimal(sum(plan.disk.values()))} ({named})"
    return f"{text}."


def _print_estimate(settings: Settings, compute: Compute, most: int, form: str) -> None:
    """Print the estimate on standard output, and its conditions on standard error."""
    plan = preview(settings)
    with shown_progress():
        stages, measured = estimate(plan, compute, most)
    print_text(
        f"{plan.documents:,d} documents in {plan.num_shards:,d} shards, one after another on this "
        f"machine. `measured` was the time of {measured:,d} documents; the other columns are "
        "arithmetic. Not known: other machines, several workers, the network, the training of an "
        "evaluation.",
        to_stderr=True,
    )
    names = StageEstimate.__slots__
    rows = [[getattr(stage, name) for name in names] for stage in stages]
    if form == "table":
        names = ("stage", "measured", "time", "CPU time", "disk")
        rows = [[stage, *map(clock, times), decimal(disk)] for stage, *times, disk in rows]
    print_rows(names, rows, form)


COMMANDS = (init, ingest, plan)
