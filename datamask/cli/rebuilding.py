"""The work and output of `rebuild` and `rerun-failed`."""

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


def rebuild_and_show(
    root: Root, settings: Settings | Change | None, compute: Compute, origin: Root | None = None
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
        run = rebuild(root, settings, compute, origin=origin, progress=progress, at_end=show)
    click.echo("\n".join(results))
    click.echo(f"report       {run.address}/report.html")
    click.echo(f"subset       {run.address}/subset")
    click.echo(f"DuckDB file  {run.address}/composition.duckdb")
    if run.settings.publication is not None:
        click.echo(f"publication  {run.root / 'publication'}")
