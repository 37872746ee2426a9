"""How near the nearest other document of the same selection is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from datamask.report.chart_data import series_of
from datamask.report.charts import Chart
from datamask.report.sample import SETS, neighbours_path
from datamask.runs.files import read_columns
from datamask.runs.run import Run


@dataclass(frozen=True, slots=True)
class Redundancy:
    """How near the nearest other document of the same selection is.

    Args:
        selection: candidates, selected, top_quality, random.
        documents: looked at.
        mean: cosine to the nearest.
        median: cosine to the nearest.
        near_duplicates: share with a neighbour at least as near as `report.near_duplicate_cosine`.
    """

    selection: str
    documents: int
    mean: float
    median: float
    near_duplicates: float


def _neighbours(run: Run) -> dict[str, np.ndarray]:
    table = read_columns(run.fetch(neighbours_path(run)), ["set", "cosine"])
    names = np.asarray(table["set"].to_pylist(), dtype=object)
    cosines = table["cosine"].to_numpy().astype(np.float64)
    return {name: np.sort(cosines[names == name]) for name in SETS if (names == name).any()}


def redundancy(run: Run) -> list[Redundancy]:
    """The nearest neighbours in numbers, by selection."""
    limit = run.settings.report.near_duplicate_cosine
    return [
        Redundancy(
            name,
            len(cosines),
            float(cosines.mean()),
            float(np.median(cosines)),
            float((cosines >= np.float32(limit)).mean()),
        )
        for name, cosines in _neighbours(run).items()
    ]


def neighbours(run: Run) -> Chart:
    """What share of documents has a neighbour at least this near, before and after."""
    grid = [round(0.01 * step, 2) for step in range(101)]
    series = []
    for name, cosines in _neighbours(run).items():
        above = len(cosines) - np.searchsorted(cosines, np.asarray(grid, np.float32), side="left")
        shares = [100 * int(count) / len(cosines) for count in above]
        series.append(
            series_of(
                name,
                grid,
                shares,
                hover=[
                    f"{share:.1f} % have a neighbour with cosine ≥ {cosine:.2f}"
                    for cosine, share in zip(grid, shares, strict=True)
                ],
            )
        )
    return Chart(
        key="neighbours",
        title="how near the nearest other document is",
        kind="lines",
        x="cosine at least",
        y="documents with such a neighbour (%)",
        series=tuple(series),
        note="The nearest other document of the same selection and shard. Lower is less redundant. "
        "Smaller selections have farther neighbours by themselves: "
        "compare ours with random, which is as small.",
    )
