"""The commands that do work on a run, from `rebuild` to `report`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from datamask.cli.options import (
    RunPlace,
    accept_only,
    asked_for,
    complete_setting,
    config_option,
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
from datamask.errors import SettingsError
from datamask.execution.pipeline import rebuild as rebuild_run
from datamask.execution.pipeline import rewrite_report
from datamask.planning.applying import check_applied, settings_to_apply
from datamask.planning.plan import Change
from datamask.report.answer import Answer, answer
from datamask.runs.opening import open_run
from datamask.runs.run import Run
from datamask.storage.location import Root

if TYPE_CHECKING:
    from datamask.execution.sweep import Variant

Result = TypeVar("Result")


@click.command()
@root_argument
@config_option
@set_option
@click.option(
    "--from",
    "origin",
    metavar="RUN",
    type=RunPlace(),
    help="Start a new RUN with the settings of this one, and reuse its files that stay valid.",
)
def rebuild(
    root: Root, config: Path | None, overrides: tuple[str, ...], origin: Root | None
) -> None:
    """Run every stage: text in, selected subset out.

    Stages: plan, quality, embeddings, selection, subset, report, publication.
    --set changes the settings of an existing RUN; settings not in --config have their defaults.

    \b
    datamask rebuild runs/mine --set selection.ratio=0.2
    datamask rebuild runs/other --from runs/mine --set selection.quality_weight=0.2
    """  # noqa: D301 - click wants the character itself
    settings, compute = asked_for(root, config, overrides, origin)
    rebuild_and_show(root, settings, compute, origin)


@click.command("rerun-failed")
@root_argument
@set_option
def rerun_failed(root: Root, overrides: tuple[str, ...]) -> None:
    """Resume RUN with its own settings.

    Does unfinished shards, subset, report and publication. Accepts only compute.* in --set.
    """
    accept_only(("compute.",), overrides)
    settings, compute = asked_for(root, None, overrides)
    rebuild_and_show(root, settings, compute)


@click.command()
@root_argument
@click.option(
    "--export",
    "exported",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Then write each trained model into a new folder, as transformers and lm_eval load it.",
)
@set_option
def evaluate(root: Root, exported: Path | None, overrides: tuple[str, ...]) -> None:
    """Train small language models on selections of RUN.

    Compares ours, random, top_quality, filtered_random (of what pruning leaves) and semdedup unless
    evaluation.arms is set. --set accepts evaluation.* and compute.*. Models are scored on
    evaluation.sets, or on documents that no selection has: with another evaluation.hold_out, the
    selection is made again.

    \b
    datamask evaluate runs/mine --set evaluation.hold_out=0.01 --set evaluation.seeds=5
    datamask evaluate runs/mine --export models
    """  # noqa: D301 - click wants the character itself
    from datamask.report.evaluation import evaluation_markdown

    accept_only(("evaluation.", "compute."), overrides)
    if exported is not None and exported.exists():
        raise SettingsError(f"--export {exported}: exists; name a new folder")

    def change(own: Settings | None) -> Settings:
        settings, _ = load_settings(None, overrides, own)
        if settings.evaluation.arms:
            return settings
        arms = f"evaluation.arms=[{', '.join(settings.default_arms)}]"
        return load_settings(None, (*overrides, arms), own)[0]

    _, compute = load_settings(None, overrides, open_run(root).settings)
    run, text = _rebuilt(evaluation_markdown, root, change, compute, publishing=False)
    click.echo(text.replace("\\", ""))
    click.echo(f"report       {run.address}/report.html#evaluation")
    if exported is not None:
        from datamask.evaluation.export import export_models  # This imports torch.

        click.echo(f"models       {len(export_models(run, exported))} in {exported}")


@click.command()
@root_argument
@click.option(
    "--over",
    multiple=True,
    required=True,
    metavar="KEY=VALUE,VALUE,…",
    shell_complete=complete_setting,
    help="A setting and the values to try. May be repeated: all combinations are tried.",
)
@click.option("--shards", metavar="N,N,…", help="Learn only these shards, without reports.")
@output_option(
    type=click.Path(file_okay=False, path_type=Path), help="Folder of the runs; default RUN-sweep."
)
@set_option
def sweep(
    root: Root,
    over: tuple[str, ...],
    shards: str | None,
    output: Path | None,
    overrides: tuple[str, ...],
) -> None:
    """Make a run for each value of a setting, and compare them.

    Several --over make a run for each combination. Each is the run of `datamask rebuild NEW --from
    RUN --set …`, in the folder RUN-sweep: it shares scores and embeddings, resumes, and has its own
    report and subset. Prints quality, diversity and objective of each, and draws the trade-off.
    Accepts only compute.* in --set.

    \b
    datamask sweep runs/mine --over selection.quality_weight=0.1,0.3,0.5
    datamask sweep runs/mine --over selection.metric=disf,pairwise --over selection.ratio=0.05,0.1
    datamask sweep runs/mine --over selection.steps=100,400 --shards 0,7
    """  # noqa: D301 - click wants the character itself
    from datamask.execution.sweep import plan_sweep, read_over, run_sweep

    accept_only(("compute.",), overrides)
    run = open_run(root)
    _, compute = load_settings(None, overrides, run.settings)
    if shards is not None and not re.fullmatch(r"\d+(,\d+)*", shards):
        raise SettingsError(f"--shards {shards}: needed numbers of shards, such as 0,7")
    learned = None if shards is None else [int(number) for number in shards.split(",")]
    variants = plan_sweep(run, read_over(over), compute, output, learned)

    def make(variant: Variant, others: Sequence[Run]) -> None:
        click.echo(f"{variant.root}", err=True)
        given = (lambda run: None, variant.root, variant.settings, compute)
        _rebuilt(*given, sharing=others, shards=learned)

    rows, page = run_sweep(run, variants, make, learned)
    shown = [[round(v, 3) if isinstance(v, float) else v for v in row.values()] for row in rows]
    print_rows(list(rows[0]), shown, "table")
    click.echo(f"page  {page}")


@click.command()
@root_argument
@click.argument("new", metavar="NEW", type=RunPlace())
@set_option
def apply(root: Root, new: Root, overrides: tuple[str, ...]) -> None:
    """Judge new documents by the mask model of RUN.

    NEW is their run. Nothing is learned. NEW has the settings of RUN, with its mask model instead
    of a budget. Documents are kept if they are worth as much as those that RUN kept, however many
    they are. RUN needs a metric that is a function of sums, such as disf: a run with the default
    metric has no mask model.

    \b
    datamask apply runs/mine runs/march --set source.path=/data/march
    """  # noqa: D301 - click wants the character itself
    learnt = open_run(root)

    def asked(own: Settings | None) -> tuple[Settings, Compute]:
        settings, compute = load_settings(None, overrides, own or settings_to_apply(learnt))
        return check_applied(settings, learnt), compute

    _, compute = asked(own_settings(new))
    rebuild_and_show(new, lambda own: asked(own)[0], compute)


@click.command()
@root_argument
@set_option
def extend(root: Root, overrides: tuple[str, ...]) -> None:
    """Select again, from all documents, after files were added.

    The files that RUN was planned with must be as they were. Their documents keep their shards and
    embeddings, and the added files become further shards. Selection, subset, report and
    publication of RUN are replaced. To keep RUN, use `datamask rebuild NEW --from RUN` instead.

    \b
    datamask extend runs/mine
    """  # noqa: D301 - click wants the character itself
    settings, compute = asked_for(root, None, overrides)
    rebuild_and_show(root, settings, compute, extend=True)


@click.command()
@root_argument
@set_option
def report(root: Root, overrides: tuple[str, ...]) -> None:
    """Write report and pictures of RUN again.

    Writes report.html and pictures/*.png. Accepts compute.* in --set.
    """
    accept_only(("compute.",), overrides)
    run = rewrite_report(root, asked_for(root, None, overrides)[1])
    click.echo(f"report    {run.address}/report.html")
    click.echo(f"pictures  {run.address}/pictures")
    if run.address != str(run.root):
        click.echo(f"here      {run.path('report')}")


def rebuild_and_show(
    root: Root,
    settings: Settings | Change | None,
    compute: Compute,
    origin: Root | None = None,
    *,
    extend: bool = False,
) -> None:
    """Run every stage, then print the summary, warnings and output files."""
    run, answered = _rebuilt(answer, root, settings, compute, origin=origin, extend=extend)
    print_answer(answered, run.address)
    click.echo(f"report       {run.address}/report.html")
    click.echo(f"subset       {run.address}/subset")
    click.echo(f"DuckDB file  {run.address}/composition.duckdb")
    if run.settings.publication is not None:
        published = json.loads(run.path("publication").read_bytes())
        click.echo(f"publication  {published.get('url', run.root / 'publication')}")


def print_answer(answered: Answer, address: str) -> None:
    """Print what was selected, how good it is, and the commands that follow."""
    print_text(answered.what)
    for row in answered.findings:
        print_text(f"{row.mark} {row.name}: {row.headline}")
    for command, takes in answered.commands.items():
        note = f"  # {takes}" if takes else ""
        click.echo(f"next: {command.replace('RUN', shlex.quote(address), 1)}{note}")


def _rebuilt(
    at_end: Callable[[Run], Result],
    root: Root,
    settings: Settings | Change | None,
    compute: Compute,
    **options: Any,
) -> tuple[Run, Result]:
    """Rebuild a run with progress; return it and what *at_end* computed under its lock."""
    results: list[Result] = []
    with shown_progress() as stages:
        options |= {"progress": stages.advance, "at_end": lambda run: results.append(at_end(run))}
        options |= {"at_start": lambda run: stages.expect(run, compute.workers)}
        run = rebuild_run(root, settings, compute, **options)
    return run, results[0]


COMMANDS = (rebuild, rerun_failed, evaluate, sweep, apply, extend, report)
