"""Commands that look at runs, settings and this machine, and `embed`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from datamask.analysis.compare import compare as compare_runs
from datamask.analysis.summary import funnel_of, relations, run_query
from datamask.analysis.summary import seen as seen_sql
from datamask.cli.options import (
    RunPlace,
    complete_setting,
    config_option,
    format_option,
    output_option,
    root_argument,
    set_option,
)
from datamask.cli.terminal import print_rows, print_text
from datamask.config.loading import load_settings
from datamask.config.reference import described
from datamask.embedding.loose_texts import embed_texts, read_texts
from datamask.errors import CorruptFileError, SettingsError
from datamask.execution.machine import checks
from datamask.execution.status import next_step, run_status, shard_table
from datamask.execution.verification import verify as verify_run
from datamask.runs.files import replace_file, write_text_file
from datamask.runs.opening import open_run
from datamask.runs.receipt import fingerprint_at_end
from datamask.runs.run import Run
from datamask.storage.location import Root


@click.command()
@root_argument
@click.option("--shards", is_flag=True, help="One line per shard, unfinished shards first.")
def status(root: Root, shards: bool) -> None:
    """Show which parts of RUN are done, stale or missing.

    For a finished run, also show how many documents remained after each step, and where the report
    is.
    """
    run = open_run(root, fingerprint_at_end)
    states_of = run_status(run)
    if shards:
        rows = list(shard_table(states_of, run.num_shards))
        print_rows(list(rows[0]), (row.values() for row in rows), "table")
        return
    click.echo(
        f"{run.num_documents:,d} documents in {run.num_shards:,d} "
        f"shard{'s' * (run.num_shards != 1)}"
    )
    states = ("done", "stale", "missing")
    print_rows(
        ("stage", *states, "left"),
        ((stage, *map(of.count, states), _shown(of)) for stage, of in states_of.items()),
        "table",
    )
    follows = run.settings.pruning_follows and states_of["example_models"] == ["done"]
    if follows and states_of["quality"][0] == "done":
        values = {"quality.prune_fraction": run.in_force.prune_fraction}
        if run.settings.weight_follows:
            values["selection.quality_weight"] = run.in_force.selection.quality_weight
        shown = ", ".join(f"{key}={value:g}" for key, value in values.items())
        click.echo(f"in force, as the examples decide: {shown}")
    if any(map(_shown, states_of.values())):
        click.echo(next_step(run, states_of))
        return
    has_model = "mask_model" in states_of
    if has_model and (reason := run.receipt("mask_model").metrics["unavailable"]):
        print_text(f"mask_model: there is none, and apply cannot use this run: {reason}")
    click.echo()
    _print_funnel(run)
    click.echo(f"finished; report: {run.address}/report.html")


def _print_funnel(run: Run) -> None:
    """Print how many documents remain after each step, as the report does."""
    from datamask.report.rendering import STEPS

    digits = {"documents": None, "tokens": None, "mean_characters": None, "mean_quality": 3}
    rows = funnel_of(run)
    known = [name for name in digits if rows[0][name] is not None]

    def shown(row: dict[str, Any], name: str) -> float | None:
        # + 0: no negative zero.
        return None if row[name] is None else round(row[name], digits[name]) + 0

    cells = ((STEPS[row["step"]], *(shown(row, name) for name in known)) for row in rows)
    print_rows(("after", *(name.replace("_", " ") for name in known)), cells, "table")


def _shown(states: Sequence[str]) -> str:
    """Show up to eight numbers of units that are not done, and how many more there are."""
    units = [unit for unit, state in enumerate(states) if state != "done"]
    more = f" and {len(units) - 8:,} more" if len(units) > 8 else ""
    return ", ".join(f"{unit:05d}" for unit in units[:8]) + more


@click.command()
@root_argument
def verify(root: Root) -> None:
    """Read every byte of RUN and compare it with its checksum.

    Corrupt files are renamed (.corrupt is appended), so that they count as missing.
    """
    run = open_run(root)
    verified = verify_run(run)
    click.echo(
        f"{verified.files:,d} files, {verified.bytes:,d} bytes read; "
        f"{len(verified.corrupt):,d} corrupt"
    )
    for name, reason in verified.corrupt:
        click.echo(f"{run.address}/{name}: {reason}")
    if verified.corrupt and not verified.may_write:
        raise CorruptFileError(
            f"{root}: corrupt files stay, because this user may only read the run; let one who may "
            f"write there run `datamask verify {shlex.quote(run.address)}`"
        )
    if verified.corrupt:
        raise CorruptFileError(
            f"{root}: {len(verified.corrupt):,} corrupt files were renamed to *.corrupt; "
            f"run `datamask rebuild {shlex.quote(run.address)}` to compute them again"
        )


@click.command()
@click.argument("roots", metavar="RUN...", nargs=-1, type=RunPlace())
@output_option(help="The page to write. Without it: comparison.html in the first RUN.")
def compare(roots: tuple[Root, ...], output: Path | None) -> None:
    """Compare runs of one source: overlap, differences, terms."""
    from datamask.report.compare_page import compare_page, term_rows

    runs = [open_run(root) for root in roots]
    compared = compare_runs(runs)
    page, first = compare_page(compared), runs[0]
    if output is None:
        write_text_file(first.root / "comparison.html", page, first.storage)
    else:
        write_text_file(output, page)
    if not compared.same_source:
        print_text("The runs have different sources, so their figures cannot be compared.")
    terms = ([name, *values, better] for name, values, better in term_rows(compared))
    shown = ("first", "second", "both", "only_first", "only_second", "jaccard")
    pairs = ([getattr(pair, name) for name in shown] for pair in compared.pairs)
    settings = ([key, *values] for key, values in compared.settings)
    terms_of = ("term", *compared.names, "better")
    tables = ((("setting", *compared.names), settings), (terms_of, terms), (shown, pairs))
    for names, rows in tables:
        print_rows(names, rows, "table")
        click.echo()
    click.echo(f"page  {output or f'{first.address}/comparison.html'}")


@click.command()
@root_argument
@click.argument("sql", required=False)
@format_option
def query(root: Root, sql: str | None, form: str) -> None:
    """Run read-only SQL on RUN.

    Without SQL, list the tables.
    """
    if sql is None:
        for name, meaning in relations().items():
            click.echo(f"{name:14s} {meaning}")
        return
    with run_query(open_run(root), sql) as (names, rows):
        print_rows(names, rows, form)


@click.command()
@root_argument
@click.option("--tokens", metavar="FIRST:LAST", default="", help="Tokens, such as 1.2e9:1.3e9.")
@click.option("--id", "document", metavar="ID", default="", help="The id of a document.")
@format_option
def seen(root: Root, tokens: str, document: str, form: str) -> None:
    """List the documents that training on tokens of RUN saw.

    \b
    datamask seen runs/mine --tokens 1.2e9:1.3e9    the documents behind a spike of the loss
    datamask seen runs/mine --id doc-17             when a document was seen, and how often
    """  # noqa: D301 - click wants the character itself
    run = open_run(root)
    if run.settings.tokens is None:
        raise SettingsError(f"{root}: the run has no tokens; set tokens.tokenizer, then rebuild")
    if not tokens and not document:
        raise SettingsError("name --tokens FIRST:LAST, --id ID or both")
    with run_query(run, seen_sql(tokens, document)) as (names, rows):
        print_rows(names, rows, form)


@click.command()
@click.argument("key", default="", shell_complete=complete_setting)
def settings(key: str) -> None:
    """List settings with default, type, range and meaning.

    KEY names one setting or a group; without it, all are listed.

    \b
    datamask settings selection.metric
    datamask settings quality
    """  # noqa: D301 - click wants the character itself
    click.echo("\n".join(described(key)))


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=Path())
def doctor(folder: Path) -> None:
    """Check this machine: device, disk, Hub, Prefect server.

    The disk is the one that holds FOLDER. The exit status is 1 if something must be fixed before a
    run.
    """
    failed = False
    for check in checks(folder):
        failed |= check.state == "failed"
        click.echo(f"{check.state:8s} {check.name:12s} {check.text}")
    sys.exit(int(failed))


@click.command("embed")
@click.argument("texts")
@click.argument("vectors", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--column", default="text", show_default=True, help="Column of Parquet and JSON lines."
)
@config_option
@set_option
def embed_command(
    texts: str, vectors: Path, column: str, config: Path | None, overrides: tuple[str, ...]
) -> None:
    """Embed TEXTS and write VECTORS, for the objective `target`.

    TEXTS is a file, folder, glob or URL of Parquet, JSON lines or plain text (one text per file).
    The settings choose the encoder, so the vectors are comparable with such a run's.

    \b
    datamask embed benchmark.jsonl target.npy --config my.yaml
    """  # noqa: D301 - click wants the character itself
    if vectors.suffix != ".npy":
        raise SettingsError(f"{vectors}: name a file that ends in .npy")
    settings, compute = load_settings(config, overrides)
    windows = settings.source.windows
    matrix = embed_texts(read_texts(texts, column), settings.embedding, compute, windows)
    with replace_file(vectors) as temporary, temporary.open("wb") as file:
        np.save(file, matrix)
    click.echo(f"{vectors}: {len(matrix):,} vectors of {matrix.shape[1]:,} numbers")


COMMANDS = (
    *(status, verify, compare, query, seen),
    *(settings, doctor, embed_command),
)
