"""Commands that look at runs and settings: `status`, `verify`, `compare`, `query`, `settings`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from datamask.cli.options import (
    RunPlace,
    complete_setting,
    format_option,
    output_option,
    root_argument,
)

if TYPE_CHECKING:
    from datamask.storage.location import Root


SAMPLED_RECORDS = 200


@click.command()
@root_argument
@click.option("--shards", is_flag=True, help="One line per shard, unfinished shards first.")
def status(root: Root, shards: bool) -> None:
    """Show which parts of RUN are done, stale or missing, by stage and shard."""
    from datamask.analysis.summary import long_texts
    from datamask.cli.tables import print_rows
    from datamask.embedding.speed import embedding_speed
    from datamask.execution.status import run_status, shard_table
    from datamask.runs.opening import open_run
    from datamask.runs.receipt import fingerprint_at_end

    run = open_run(root, fingerprint_at_end)
    found = run_status(run)
    if shards:
        rows = list(shard_table(found, run.num_shards))
        print_rows(list(rows[0]), (row.values() for row in rows), "table")
        return
    click.echo(f"{run.num_documents} documents in {run.num_shards} shards")
    states = ("done", "stale", "missing")
    print_rows(
        ("stage", *states, "left"),
        ((stage, *map(of.count, states), _shown(of)) for stage, of in found.items()),
        "table",
    )
    if told := long_texts(run):
        click.echo(told)
    # In an object store this would fetch a file per shard; the report has it.
    for name, done in (("classifier_scores", "classified"), ("embeddings", "embedded")):
        is_local = run.address == str(run.root)
        speed = embedding_speed(run, name, most=SAMPLED_RECORDS) if is_local else None
        if speed is None:
            continue
        padding = "" if speed.padding is None else f", {speed.padding:.1%} of tokens were padding"
        rate = f"{speed.documents_per_second:.4g} documents/s by one worker"
        click.echo(f"{done} at {rate}{padding}")
    if any(map(_shown, found.values())):
        click.echo(f"run `datamask rerun-failed {root}` to resume")


def _shown(states: Sequence[str]) -> str:
    """Up to eight numbers of units that are not done, and how many more there are."""
    units = [unit for unit, state in enumerate(states) if state != "done"]
    more = f" and {len(units) - 8} more" if len(units) > 8 else ""
    return ", ".join(f"{unit:05d}" for unit in units[:8]) + more


@click.command()
@root_argument
def verify(root: Root) -> None:
    """Read every byte of RUN and compare it with its checksum.

    Corrupt files are renamed (.corrupt is appended), so that they count as missing.
    """
    from datamask.errors import CorruptFileError
    from datamask.execution.verification import verify as verify_run
    from datamask.runs.opening import open_run

    run = open_run(root)
    found = verify_run(run)
    click.echo(f"{found.files} files, {found.bytes:,d} bytes read; {len(found.corrupt)} corrupt")
    for name, reason in found.corrupt:
        click.echo(f"{run.address}/{name}: {reason}")
    if found.corrupt:
        raise CorruptFileError(
            f"{root}: {len(found.corrupt)} corrupt files were renamed to *.corrupt; "
            f"run `datamask rebuild {root}` to compute them again"
        )


@click.command()
@click.argument("roots", metavar="RUN...", nargs=-1, type=RunPlace())
@output_option(default=Path("comparison.html"), help="The page to write.")
def compare(roots: tuple[Root, ...], output: Path) -> None:
    """Compare two or more runs of one source: overlap, differences, terms."""
    from datamask.analysis.compare import compare as compare_runs
    from datamask.report.compare_page import compare_page, compare_text
    from datamask.runs.files import replace_file
    from datamask.runs.opening import open_run

    found = compare_runs([open_run(root) for root in roots])
    with replace_file(output) as temporary:
        temporary.write_text(compare_page(found), encoding="utf-8")
    click.echo(compare_text(found))
    click.echo(f"\npage  {output}")


@click.command()
@root_argument
@click.argument("sql", required=False)
@format_option
def query(root: Root, sql: str | None, form: str) -> None:
    """Run read-only SQL on RUN. Without SQL, list the tables."""
    from datamask.analysis.query import relations, run_query
    from datamask.cli.tables import print_rows
    from datamask.runs.opening import open_run

    if sql is None:
        for name, meaning in relations().items():
            click.echo(f"{name:14s} {meaning}")
        return
    with run_query(open_run(root), sql) as (names, rows):
        print_rows(names, rows, form)


@click.command()
@click.argument("key", default="", shell_complete=complete_setting)
def settings(key: str) -> None:
    """List settings with default, type, range and meaning: all, a group, or the one named KEY.

    \b
    datamask settings selection.metric
    datamask settings quality
    """  # noqa: D301 - click wants the character itself
    from datamask.config.reference import described

    click.echo("\n".join(described(key)))


COMMANDS = (status, verify, compare, query, settings)
