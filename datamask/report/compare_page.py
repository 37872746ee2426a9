"""The page of a comparison."""

from __future__ import annotations

import contextlib

from datamask.analysis.compare import Comparisons
from datamask.analysis.composition import KINDS, open_composition
from datamask.analysis.summary import gains, totals_of
from datamask.report.redundancy import redundancy
from datamask.report.rendering import render


def term_rows(comparisons: Comparisons) -> list[tuple[str, list[float | None], str]]:
    """Each figure, its value in every run (None if unknown), and what is better.

    Terms are gains over random selections of the first run in their standard deviations, so that
    their sizes can be compared. The objective is left out: its unit depends on the weights of each
    run.
    """
    runs = list(comparisons.runs.values())
    known = [gains(run, runs[0]) for run in runs]
    names = dict.fromkeys(name for run in known for name in run)
    near = [redundancy(run).get("selected", {}).get("near_duplicates") for run in runs]
    lengths = [totals_of(run)["selected"]["mean_characters"] for run in runs]
    return [
        *((name, [run.get(name, {}).get("selected") for run in known], "higher") for name in names),
        ("mean characters", lengths, ""),
        ("near-duplicates", near, "lower"),
    ]


def compare_page(comparisons: Comparisons) -> str:
    """The page's HTML."""
    with contextlib.ExitStack() as opened:
        # DuckDB opens each run's file once for all queries: opening a file takes 20 ms.
        for run in comparisons.runs.values():
            opened.enter_context(open_composition(run, "totals"))
        return render(
            "compare.html",
            comparisons=comparisons,
            totals={name: totals_of(run) for name, run in comparisons.runs.items()},
            terms=term_rows(comparisons),
            kinds=KINDS,
        )
