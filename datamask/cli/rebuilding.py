"""The work and output of `rebuild`, `rerun-failed`, `evaluate` and `sweep`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from datamask.cli.progress import shown_progress

if TYPE_CHECKING:
    from datamask.config.compute import Compute
    from datamask.config.settings import Settings
    from datamask.planning.plan import Change
    from datamask.runs.run import Run
    from datamask.storage.location import Root


def evaluate_and_show(root: Root, overrides: tuple[str, ...]) -> None:
    """Do what is left of a run and its evaluation, up to the report; print what it found.

    Raises:
        RunError: there is no run.
    """
    from datamask.config.loading import load_settings
    from datamask.execution.pipeline import rebuild
    from datamask.report.evaluation import evaluation_markdown
    from datamask.runs.opening import open_run

    def change(own: Settings | None) -> Settings:
        settings, _ = load_settings(None, overrides, own)
        if settings.evaluation.arms:
            return settings
        arms = ("evaluation.arms=[ours, random, top_quality]",)
        return load_settings(None, (*overrides, *arms), own)[0]

    _, compute = load_settings(None, overrides, open_run(root).settings)
    results: list[str] = []
    with shown_progress() as progress:
        run = rebuild(
            root,
            change,
            compute,
            progress=progress,
            at_end=lambda run: results.append(evaluation_markdown(run)),
            publishing=False,
        )
    click.echo(results[0].replace("\\", ""))
    click.echo(f"report       {run.address}/report.html#evaluation")


def sweep_and_show(root: Root, overrides: tuple[str, ...]) -> None:
    """Try other settings on a sample of a run; print the choices and the recommendation.

    Raises:
        RunError: there is no run, or its quality and embeddings are not done.
    """
    from datamask.analysis.frontier import frontier
    from datamask.cli.tables import print_rows
    from datamask.config.loading import load_sweep
    from datamask.evaluation.weights import with_weights
    from datamask.execution.pipeline import rebuild
    from datamask.report.sweep_files import run_sweep
    from datamask.report.sweep_page import recommend, recommendation_text, sweep_rows
    from datamask.runs.locks import working_on
    from datamask.runs.opening import open_run

    sweep, compute = load_sweep(overrides)
    run = open_run(root)

    def change(own: Settings | None) -> Settings:
        settings = own or run.settings
        evaluation = with_weights(settings.evaluation, sweep.quality_weights)
        return settings.model_copy(update={"evaluation": evaluation})

    with shown_progress() as progress:
        if sweep.by == "evaluation":
            run = rebuild(root, change, compute, progress=progress, publishing=False)
        with working_on(run):
            path = run_sweep(run, sweep, compute, progress)
            points = frontier(run, sweep)
            recommended = recommend(run, sweep, points)
    rows = sweep_rows(points, run.settings.selection.metric)
    print_rows(list(rows[0]), (tuple(row.values()) for row in rows), "table")
    click.echo(recommendation_text(recommended))
    click.echo(f"page  {run.address}/{path.relative_to(run.root)}")


def rebuild_and_show(
    root: Root,
    settings: Settings | Change | None,
    compute: Compute,
    origin: Root | None = None,
    *,
    extend: bool = False,
) -> None:
    """Run every stage, then print the summary, warnings and output files."""
    from datamask.analysis.drift import drift_text
    from datamask.analysis.summary import summary_text
    from datamask.execution.pipeline import rebuild
    from datamask.report.warnings import warnings

    results: list[str] = []

    def show(run: Run) -> None:
        results.append(summary_text(run))
        results.extend(drift_text(run))
        results.extend(f"warning      {line}" for line in warnings(run))

    with shown_progress() as progress:
        run = rebuild(
            root,
            settings,
            compute,
            origin=origin,
            extend=extend,
            progress=progress,
            at_end=show,
        )
    click.echo("\n".join(results))
    click.echo(f"report       {run.address}/report.html")
    click.echo(f"subset       {run.address}/subset")
    click.echo(f"DuckDB file  {run.address}/composition.duckdb")
    if run.settings.publication is not None:
        click.echo(f"publication  {run.root / 'publication'}")
