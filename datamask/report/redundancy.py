"""Cosines to the nearest other document of the same selection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from datamask.analysis.composition import rows_of
from datamask.analysis.query import open_run_database
from datamask.report.chart_data import series_of
from datamask.report.charts import Chart
from datamask.report.markdown import SELECTIONS
from datamask.report.rendering import render
from datamask.runs.run import Run

SETS = ("candidates", "selected", "top_quality", "random")

NEAR_DUPLICATE_COSINE = 0.95
"""From which two documents are near-duplicates."""


def sample_path(run: Run) -> Path:
    """The file of the sample."""
    return run.root / "report" / "sample.parquet"


def neighbours_path(run: Run) -> Path:
    """The file of the cosines to nearest neighbours."""
    return run.root / "report" / "neighbours.parquet"


def redundancy(run: Run) -> dict[str, dict[str, Any]]:
    """By selection: sampled documents, mean and median cosine to the nearest other document.

    `near_duplicates` is the share with a cosine of at least `NEAR_DUPLICATE_COSINE`, `error`
    its standard error as that of a draw without replacement, 0 if all documents were asked;
    `cosines` are sorted, float32. Selections without documents are left out, and all without a
    report.
    """
    if not run.fetch(sample_path(run)).exists():
        return {}
    with open_run_database(run) as connection:
        sql = "SELECT sum(candidates), sum(selected) FROM shards"
        ((candidates, selected),) = connection.execute(sql).fetchall()
        found = connection.execute(
            "SELECT set, count(*) AS documents, avg(cosine::DOUBLE) AS mean, "
            "median(cosine::DOUBLE) AS median, avg((cosine >= ?::FLOAT)::INT) AS near_duplicates, "
            "list(cosine ORDER BY cosine) AS cosines FROM neighbours GROUP BY set",
            [NEAR_DUPLICATE_COSINE],
        )
        rows = {row["set"]: row for row in rows_of(found)}
    for name, row in rows.items():
        size = candidates if name == "candidates" else selected
        share, drawn = row["near_duplicates"], row["documents"]
        row["error"] = (share * (1 - share) / drawn * (size - drawn) / max(size - 1, 1)) ** 0.5
    return {name: rows[name] for name in SETS if name in rows}


def near_duplicates_markdown(run: Run) -> str:
    """A table of near-duplicates before and after; empty without a report."""
    found = redundancy(run)
    if not found:
        return ""
    return render("near_duplicates.md", cosine=NEAR_DUPLICATE_COSINE, names=SELECTIONS, found=found)


def neighbours(run: Run) -> Chart:
    """The share of documents with a neighbour at least this near, by selection."""
    grid = [round(0.01 * step, 2) for step in range(101)]
    series = []
    for name, row in redundancy(run).items():
        cosines = np.asarray(row["cosines"], np.float32)
        below = np.searchsorted(cosines, np.asarray(grid, np.float32), side="left")
        shares = [100 * (len(cosines) - count) / len(cosines) for count in below.tolist()]
        hover = [
            f"{share:.1f} % have a neighbour with cosine ≥ {cosine:.2f}"
            for cosine, share in zip(grid, shares, strict=True)
        ]
        series.append(series_of(name, grid, shares, hover=hover))
    return Chart(
        key="neighbours",
        title="how near the nearest other document is",
        kind="lines",
        x="cosine at least",
        y="documents with such a neighbour (%)",
        series=tuple(series),
        note="The nearest other document of the same selection and shard. Lower is less redundant. "
        "Smaller selections have more distant neighbours: compare ours with random, which has the "
        "same size.",
    )
