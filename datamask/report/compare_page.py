"""The page of a comparison."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from datamask.analysis.compare import Comparisons
from datamask.analysis.summary import gains, kinds_of, open_composition, totals_of
from datamask.report.chart_data import curve_charts
from datamask.report.redundancy import redundancy
from datamask.report.rendering import render


def term_rows(comparisons: Comparisons) -> list[tuple[str, list[float | None], str]]:
    """Return each figure, its value in every run (None if unknown), and the run that is better.

    Terms are gains over random selections of the first run, as fractions of its best selection's
    gain, so that their sizes can be compared. The objective is left out: its unit depends on the
    weights of each run. No run is named where settings make the values incomparable, or where the
    best are equal.
    """
    runs = list(comparisons.runs.values())
    known = [gains(run, runs[0]) for run in runs]
    names = dict.fromkeys(name for run in known for name in run)
    near = [redundancy(run).get("selected", {}).get("near_duplicates") for run in runs]
    lengths = [totals_of(run)["selected"]["mean_characters"] for run in runs]
    rows: list[tuple[str, list[float | None], str]] = []
    for name in names:
        values = [run.get(name, {}).get("selected") for run in known]
        rows.append((name, values, _better(comparisons, name, values, max)))
    rows.append(("mean characters", lengths, ""))
    return [*rows, ("near-duplicates", near, _better(comparisons, "near-duplicates", near, min))]


_SCORES, _VECTORS = ("quality.scores",), ("embedding.", "plan.", "selection.scope")
"""Beginnings of settings on which the values of quality, and of all other terms, depend."""


def _better(
    comparisons: Comparisons,
    name: str,
    values: Sequence[float | None],
    best: Callable[..., float],
) -> str:
    """Name the run with the best value; in brackets, why none is named."""
    depends = _SCORES if name == "quality" else _VECTORS
    if not comparisons.same_source:
        return "(other source)"
    if differs := [key for key, _ in comparisons.settings if key.startswith(depends)]:
        return f"(other {differs[0]})"
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return "(not known)"
    winners = [
        run for run, value in zip(comparisons.names, values, strict=True) if value == best(known)
    ]
    return winners[0] if len(winners) == 1 else "(equal)"


def compare_page(comparisons: Comparisons) -> str:
    """Return the page's HTML."""
    with contextlib.ExitStack() as opened:
        # DuckDB opens each run's file once for all queries: opening a file takes 20 ms.
        for run in comparisons.runs.values():
            opened.enter_context(open_composition(run, "totals"))
        return render(
            "compare.html",
            comparisons=comparisons,
            totals={name: totals_of(run) for name, run in comparisons.runs.items()},
            terms=term_rows(comparisons),
            curves=curve_charts(comparisons.runs),
            kinds={
                k: v for run in comparisons.runs.values() for k, v in kinds_of(run.settings).items()
            },
        )
