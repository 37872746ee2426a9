"""The `datamask` command: the pipeline without Prefect, and a look at a run folder.

Every problem is one line on standard error; the exit is 2 for what must be fixed first, 75 for
what may heal by itself, 70 for a mistake of this program. Nothing heavy is imported before it is
needed.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import click

from datamask import __version__
from datamask.errors import EXIT_MISTAKE, DatamaskError, exit_status, lines, printable

if TYPE_CHECKING:
    from datamask.storage.location import Root
from datamask.cli.given import asked_for, own_settings
from datamask.cli.options import RunPlace, config_option, format_option, root_argument, set_option
from datamask.cli.plan_output import print_estimate, print_plan
from datamask.cli.progress import shown_progress
from datamask.cli.rebuilding import rebuild_and_show


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, invoke_without_command=True)
@click.version_option(__version__)
@click.option("-q", "--quiet", is_flag=True, help="Only warnings and errors.")
@click.pass_context
def cli(context: click.Context, quiet: bool) -> None:
    """Select pre-training data by quality and diversity at once.

    A RUN is a folder, or the URL of one in an object store (s3://bucket/prefix, gs://...). It holds
    everything that was computed and remembers its settings; giving the same command again does
    exactly what is left, on any machine.

    \b
    datamask rebuild runs/mine --config my.yaml     text in, selected subset out
    datamask status runs/mine                       what is done, stale or missing
    datamask verify runs/mine                       read every byte, name what is corrupt
    datamask report runs/mine                       what was selected and why, as a page
    datamask compare runs/mine runs/other           what they share, what one has alone
    datamask sweep runs/mine                        what another lambda would have done
    datamask query runs/mine "select ..."           SQL on the run
    datamask settings                               every setting with range and meaning
    """  # noqa: D301 - click wants the character itself
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
    logging.basicConfig(
        level=logging.WARNING if quiet else logging.INFO,
        format="%(asctime)s %(levelname)-7s %(message)s",
        datefmt="%H:%M:%S",
        stream=sys.stderr,
    )
    noisy_names = ("httpx", "httpx2", "sentence_transformers", "transformers", "huggingface_hub")
    for noisy in (*noisy_names, "aiobotocore", "botocore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


@cli.command()
@root_argument
@config_option
@set_option
@click.option(
    "--from",
    "origin",
    metavar="RUN",
    type=RunPlace(),
    help="Start a new RUN from this one's settings, and share the files that stay the same.",
)
def rebuild(
    root: Root, config: Path | None, overrides: tuple[str, ...], origin: Root | None
) -> None:
    """Run every stage: plan, quality, embeddings, masks, subset, report, publication.

    --set changes an existing RUN's own settings; what --config does not name has its default.

    \b
    datamask rebuild runs/mine --set selection.ratio=0.2
    datamask rebuild runs/other --from runs/mine --set selection.quality_weight=0.2
    """  # noqa: D301 - click wants the character itself
    settings, compute = asked_for(root, config, overrides, origin)
    rebuild_and_show(root, settings, compute, origin)


@cli.command("rerun-failed")
@root_argument
@set_option
def rerun_failed(root: Root, overrides: tuple[str, ...]) -> None:
    """Do what is left of RUN with its own settings, then merge, report and publish.

    Only compute.* may be --set here.
    """
    from datamask.config.loading import load_settings
    from datamask.errors import SettingsError

    others = [item for item in overrides if not item.startswith("compute.")]
    if others:
        raise SettingsError(
            f"--set {others[0]}: only compute.* here; to change the rest use `datamask rebuild`"
        )
    _, compute = load_settings(None, overrides)
    rebuild_and_show(root, None, compute)


@cli.command()
@root_argument
@config_option
@set_option
@click.option("--dry-run", is_flag=True, help="Print settings, shards and disk needed; write none.")
@click.option(
    "--estimate",
    is_flag=True,
    help="Print time, CPU and GPU hours, disk and network of every stage, as measured by running "
    "all of them on rows of up to three of the shards, here and now; write nothing.",
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
    default=120,
    show_default=True,
    help="--estimate: time to spend on measuring, about.",
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
    """Check the input and cut it into shards. --set changes an existing RUN's own settings.

    \b
    datamask plan runs/mine --config my.yaml --estimate --set compute.workers=8 --machines 48
    """  # noqa: D301 - click wants the character itself
    from datamask.config.loading import load_settings
    from datamask.errors import together
    from datamask.planning.plan import plan_run
    from datamask.planning.preview import examine

    if estimate:
        print_estimate(root, config, overrides, machines, calibration_seconds, form)
        return
    if not dry_run:
        wanted, compute = asked_for(root, config, overrides)
        run = plan_run(root, wanted, compute)
        click.echo(
            f"{run.num_documents} documents in {run.num_shards} shards: {run.address}/plan.parquet"
        )
        return
    settings, _ = load_settings(config, overrides, own_settings(root, config))
    found, problems = examine(settings)
    print_plan(found, form)
    if problems:
        raise together(problems)


@cli.command()
@root_argument
@click.option("--shards", is_flag=True, help="One line per shard, unfinished ones first.")
def status(root: Root, shards: bool) -> None:
    """Show what of RUN is done, stale or missing, by stage and shard."""
    from datamask.embedding.speed import embedding_speed
    from datamask.execution.status import run_status, shard_table
    from datamask.runs.opening import open_run

    run = open_run(root)
    found = run_status(run)
    if shards:
        for number, row in enumerate(shard_table(found, run.num_shards)):
            if not number:
                click.echo("  ".join(f"{name:10s}" for name in row).rstrip())
            click.echo("  ".join(f"{value:10s}" for value in row.values()).rstrip())
        return
    click.echo(f"{run.num_documents} documents in {run.num_shards} shards")
    click.echo(f"{'stage':17s} {'done':>7s} {'stale':>7s} {'missing':>7s}  left")
    for stage in found:
        left = [f"{unit:05d}" for unit in stage.left]
        shown = ", ".join(left[:8]) + (f" and {len(left) - 8} more" if len(left) > 8 else "")
        counts = "".join(f" {stage.states.count(s):7d}" for s in ("done", "stale", "missing"))
        click.echo(f"{stage.stage:17s}{counts}  {shown}".rstrip())
    # In a store, a file for each shard would have to be fetched; the report tells it.
    for name, done in (("classifier_scores", "classified"), ("embeddings", "embedded")):
        speed = embedding_speed(run, stage=name) if run.address == str(run.root) else None
        if speed is None:
            continue
        padding = "" if speed.padding is None else f", {speed.padding:.1%} of tokens were padding"
        rate = f"{speed.documents_per_second:.4g} documents/s by one worker"
        click.echo(f"{done} at {rate}{padding}")
    if any(stage.left for stage in found):
        click.echo(f"`datamask rerun-failed {root}` does what is left")


@cli.command()
@root_argument
def verify(root: Root) -> None:
    """Read every byte of RUN and compare it with its checksum.

    Corrupt files are moved aside (.corrupt is appended), so that they count as missing.
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
            f"{root}: {len(found.corrupt)} corrupt files were moved aside; "
            f"`datamask rebuild {root}` makes them again"
        )


@cli.command()
@root_argument
@set_option
def report(root: Root, overrides: tuple[str, ...]) -> None:
    """Write RUN's report and its pictures again: report.html, pictures/*.png.

    What looks closer is a setting: --set report.map_documents=5000. Also compute.* may be --set.
    """
    from datamask.errors import SettingsError
    from datamask.execution.pipeline import rewrite_report

    others = [item for item in overrides if not item.startswith(("compute.", "report."))]
    if others:
        raise SettingsError(
            f"--set {others[0]}: only report.* and compute.* here; to change the rest use "
            "`datamask rebuild`"
        )
    settings, compute = asked_for(root, None, overrides)
    run = rewrite_report(root, compute, settings if callable(settings) else None)
    click.echo(f"report    {run.address}/report.html")
    click.echo(f"pictures  {run.address}/pictures")
    if run.address != str(run.root):
        click.echo(f"here      {run.path('report')}")


@cli.command()
@click.argument("roots", metavar="RUN...", nargs=-1, type=RunPlace())
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("comparison.html"),
    show_default=True,
    help="The page to write.",
)
def compare(roots: tuple[Root, ...], output: Path) -> None:
    """Compare two or more runs of one source: overlap, what each keeps alone, terms."""
    from datamask.analysis.compare import compare as compare_runs
    from datamask.report.compare_page import compare_page, compare_text
    from datamask.runs.files import replace_file
    from datamask.runs.opening import open_run

    found = compare_runs([open_run(root) for root in roots])
    with replace_file(output) as temporary:
        temporary.write_text(compare_page(found), encoding="utf-8")
    click.echo(compare_text(found))
    click.echo(f"\npage  {output}")


@cli.command()
@root_argument
@click.argument("sql", required=False)
@format_option
def query(root: Root, sql: str | None, form: str) -> None:
    """Run SQL on RUN's DuckDB file, read-only. Without SQL: what can be queried."""
    from datamask.analysis.query import RELATIONS, run_query
    from datamask.cli.tables import print_rows
    from datamask.runs.opening import open_run

    if sql is None:
        for name, meaning in RELATIONS.items():
            click.echo(f"{name:14s} {meaning}")
        return
    with run_query(open_run(root), sql) as (names, rows):
        print_rows(names, rows, form)


@cli.command()
@root_argument
@set_option
def sweep(root: Root, overrides: tuple[str, ...]) -> None:
    """Try other values of lambda on a sample of RUN's shards; nothing is embedded anew.

    Needs scores, quality and embeddings of RUN. `datamask settings` lists sweep.*.

    \b
    datamask sweep runs/mine
    datamask sweep runs/mine --set 'sweep.quality_weights=[0.2,0.5,0.8]' --set 'sweep.ratios=[0.05]'
    """  # noqa: D301 - click wants the character itself
    from datamask.analysis.frontier import frontier
    from datamask.cli.tables import print_rows
    from datamask.config.loading import load_sweep
    from datamask.report.sweep_files import run_sweep
    from datamask.report.sweep_page import sweep_rows
    from datamask.runs.locks import working_on
    from datamask.runs.opening import open_run

    settings, compute = load_sweep(overrides)
    run = open_run(root)
    with working_on(run):
        with shown_progress() as progress:
            path = run_sweep(run, settings, compute, progress)
        rows = sweep_rows(frontier(run, settings))
    print_rows(list(rows[0]), (tuple(row.values()) for row in rows), "table")
    click.echo(f"page  {run.address}/{path.relative_to(run.root)}")


@cli.command()
def settings() -> None:
    """List every setting with its default, range and meaning."""
    from datamask.config.compute import Compute
    from datamask.config.outputs import Sweep
    from datamask.config.reference import describe
    from datamask.config.settings import Settings

    lines = describe(Settings) + describe(Compute, "compute.") + describe(Sweep, "sweep.")
    for line in lines:
        click.echo(line)


def main() -> None:
    """Entry point: turn this library's errors into one line and an exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What the terminal's encoding lacks is shown by its number.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        cli(prog_name="datamask", standalone_mode=False)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f"; see `{context.command_path} --help`" if context else ""
        text = printable(error.format_message().rstrip("."))
        click.echo(f"datamask: {text}{hint}", err=True)
        sys.exit(error.exit_code)
    except click.exceptions.Abort:
        click.echo("interrupted; the same command does what is left", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # The reader of the output has closed it, as `head` does.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (DatamaskError, OSError) as error:
        for line in lines(error):
            click.echo(line, err=True)
        sys.exit(exit_status(error))
    except Exception as error:
        click.echo(printable(traceback.format_exc()), err=True, nl=False)
        reason = printable(" ".join(f"{type(error).__name__}: {error}".split()))
        click.echo(f"datamask: a mistake in datamask itself ({reason}); please report it", err=True)
        sys.exit(EXIT_MISTAKE)


if __name__ == "__main__":
    main()
