"""Write the results of a run as GitHub Markdown, for the dataset card and Prefect's artifact.

All values come from `composition.duckdb`, like those of the report page.
"""

from __future__ import annotations

from datamask.analysis.summary import (
    benchmarks,
    drift,
    funnel_of,
    moved_groups,
    query,
    repeats_of,
    score_coverage,
    tabs_of,
)
from datamask.report.rendering import render
from datamask.runs.run import Run


def report_markdown(run: Run) -> str:
    """Write the documents that remain after each step, scores, screening, and changed groups.

    Raises:
        RunError: the composition is missing.
    """
    most_changed = "ORDER BY abs(share_after - share_before) DESC, name LIMIT 10"
    return render(
        "results.md",
        settings=run.settings,
        funnel=funnel_of(run),
        benchmarks=benchmarks(run),
        drift=drift(run),
        repeats=repeats_of(run),
        coverage=score_coverage(run),
        correlations=query(
            run, "SELECT * FROM score_correlations ORDER BY abs(correlation), score, other"
        ),
        explained=query(run, "SELECT * FROM score_explained WHERE score <> 'quality'"),
        moved=moved_groups(run, 10),
        groups={
            title: query(run, f"SELECT * FROM groups WHERE kind = '{kind}' {most_changed}")
            for kind, title in tabs_of(run.settings).items()
        },
    )
