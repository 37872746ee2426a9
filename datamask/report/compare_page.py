"""The page of a comparison, and its tables for a terminal."""

from __future__ import annotations

from datamask.analysis.compare import Comparisons
from datamask.analysis.composition import KINDS
from datamask.analysis.summary import summary, totals_of
from datamask.objectives.quality import Quality
from datamask.report.chart_data import length_quantiles, quantile_line
from datamask.report.charts import Chart, Series, look
from datamask.report.rendering import render
from datamask.report.verdict import verdict


def compare_charts(found: Comparisons) -> list[Chart]:
    """Jaccard index by tenth of quality, and lengths if the source has text."""
    bands = Chart(
        key="bands",
        title="overlap by score",
        kind="lines",
        x="tenth of the first run's quality (10: the best)",
        y="Jaccard index (shared / kept by either)",
        note="1: both keep the same documents of this tenth; no point: neither keeps any.",
        series=tuple(
            Series(
                name=f"{pair.first} and {pair.second}",
                x=[band["band"] for band in pair.bands],
                y=[band["jaccard"] for band in pair.bands],
                hover=[
                    f"quality {band['low']:.4g} to {band['high']:.4g}: {band['both']:,} shared, "
                    f"{band['first']:,} and {band['second']:,} kept"
                    for band in pair.bands
                ],
                **look(place),
            )
            for place, pair in enumerate(found.pairs)
        ),
    )
    series = []
    for place, (name, run) in enumerate(found.runs.items()):
        if values := length_quantiles(run).get("selected"):
            series.append(Series(name=name, **quantile_line(values), **look(place)))
    lengths = Chart(
        key="compare-lengths",
        title="length of what is kept",
        kind="lines",
        x="quantile (%)",
        y="characters",
        log_y=True,
        series=tuple(series),
    )
    return [bands, lengths] if series else [bands]


def term_rows(found: Comparisons) -> list[tuple[str, list[float | None], str]]:
    """Each term and figure, its value in every run (None if unknown), and what is better.

    The objective is left out, because its unit depends on the weights and scales of each run.
    """
    runs = [{row.name: row for row in summary(run)} for run in found.runs.values()]
    names = {name: row.better for run in runs for name, row in run.items() if name != "objective"}
    verdicts = [verdict(run) for run in found.runs.values()]
    return [
        *(
            (name, [run[name].selected if name in run else None for run in runs], better)
            for name, better in names.items()
        ),
        ("near-duplicates", [one.near_duplicates.get("selected") for one in verdicts], "lower"),
        ("groups lost", [float(one.lost) for one in verdicts], "lower"),
    ]


_DOCUMENTS_ALONE = (Quality.name, "groups lost")
"""Figures that depend on the selected documents and their scores, not on embeddings or shards."""


_OF_VALUES = ("embedding", "plan", "selection.scope", "source.columns", "source.layout")
"""Settings that change the values of diversity; those of quality depend on the scores."""


def better_in(found: Comparisons) -> dict[str, list[str]]:
    """By run, the figures in which it alone is best, as far as their settings are comparable.

    Figures of different sources are not.
    """
    keys = [key for key, _ in found.settings]
    differ = any(key.startswith(_OF_VALUES) for key in keys)
    scores_differ = any(key.startswith("quality.scores") for key in keys)
    best: dict[str, list[str]] = {name: [] for name in found.names}
    if not found.same_source:
        return best
    for row, values, better in term_rows(found):
        known = [value for value in values if value is not None]
        if len(known) < len(values) or not better or (differ and row not in _DOCUMENTS_ALONE):
            continue
        most = max(known) if better == "higher" else min(known)
        if known.count(most) == 1 and not (scores_differ and row == Quality.name):
            best[found.names[values.index(most)]].append(row)
    return best


def better_text(found: Comparisons) -> list[str]:
    """`better_in` as sentences."""
    if not found.same_source:
        return ["The runs have different sources, so none is called best."]
    return [
        f"{name} is best in {', '.join(figures)}." if figures else f"{name} is best in no figure."
        for name, figures in better_in(found).items()
    ]


def compare_page(found: Comparisons) -> str:
    """The page's HTML."""
    return render(
        "compare.html",
        charts=compare_charts(found),
        found=found,
        totals={name: totals_of(run) for name, run in found.runs.items()},
        terms=term_rows(found),
        best=better_in(found),
        sentences=better_text(found),
        kinds=KINDS,
    )


def compare_text(found: Comparisons) -> str:
    """Settings that differ, overlap and figures as plain text for a terminal."""
    return render(
        "compare.txt",
        found=found,
        sentences=better_text(found),
        terms=term_rows(found),
        wide=max(16, *(len(name) + 2 for name in found.names)),
    ).removesuffix("\n")
