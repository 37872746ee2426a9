"""The page of a comparison, and its tables for a terminal."""

from __future__ import annotations

from typing import Any

from datamask.analysis.compare import Comparisons, Pair
from datamask.report.charts import COLOURS, Chart, Series
from datamask.report.markdown import KINDS, number
from datamask.report.page import render


def compare_charts(found: Comparisons) -> list[Chart]:
    """Jaccard by score band, and lengths."""
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
                x=[band.band for band in pair.bands],
                y=[band.jaccard for band in pair.bands],
                colour=COLOURS[place % len(COLOURS)],
                style=place,
                hover=[
                    f"quality {band.low:.4g} to {band.high:.4g}: {band.both:,} shared, "
                    f"{band.first:,} and {band.second:,} kept"
                    for band in pair.bands
                ],
            )
            for place, pair in enumerate(found.pairs)
        ),
    )
    series = []
    for place, name in enumerate(found.names):
        row = found.lengths[name]
        points = [int(key[1:]) for key in row if key.startswith("q")]
        values = [row[f"q{point}"] for point in points]
        if None not in values:
            series.append(
                Series(
                    name=name,
                    x=points,
                    y=values,
                    colour=COLOURS[place % len(COLOURS)],
                    style=place,
                    hover=[
                        f"{point} % of documents have at most {value:,} characters"
                        for point, value in zip(points, values, strict=True)
                    ],
                )
            )
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
    """Each term with its value in every run (None where the run has no such term).

    Not the objective: it is in units of each run's own weights and scales.
    """
    names = list(dict.fromkeys(row.name for rows in found.terms.values() for row in rows))
    names = [name for name in names if name != "objective"]
    table = []
    for name in names:
        rows = [
            next((row for row in found.terms[run] if row.name == name), None) for run in found.names
        ]
        better = next(row.better for row in rows if row is not None)
        table.append((name, [None if row is None else row.selected for row in rows], better))
    return table


def compare_page(found: Comparisons) -> str:
    """The page's HTML."""
    charts = compare_charts(found)
    return render(
        "compare.html",
        charts=charts,
        found=found,
        terms=term_rows(found),
        kinds=KINDS,
    )


def overlap_rows(pairs: list[Pair]) -> list[list[Any]]:
    """A pair a row: names, shared, kept by one alone, Jaccard."""
    return [
        [pair.first, pair.second, pair.both, pair.only_first, pair.only_second, pair.jaccard]
        for pair in pairs
    ]


def compare_text(found: Comparisons) -> str:
    """Overlap and terms as plain text for a terminal."""
    wide = max(16, *(len(name) + 2 for name in found.names))
    lines = ["overlap of what is kept"]
    head = ("first", "second", "both", "only first", "only second", "Jaccard")
    lines.append("".join(f"{name:>{wide}}" for name in head))
    for row in overlap_rows(found.pairs):
        lines.append("".join(f"{_shown(value):>{wide}}" for value in row))
    for pair in found.pairs:
        lines += ["", f"Jaccard by tenth of quality, {pair.first} and {pair.second} (1: the worst)"]
        lines.append("".join(f"{band.band:>7d}" for band in pair.bands))
        shares = [band.jaccard for band in pair.bands]
        lines.append("".join(f"{'–' if v is None else format(v, '.3f'):>7}" for v in shares))
    lines += ["", f"{'term':26s}" + "".join(f"{name:>{wide}}" for name in found.names) + "  better"]
    for name, values, better in term_rows(found):
        shown = "".join(f"{_shown(value):>{wide}}" for value in values)
        lines.append(f"{name:26s}{shown}  {better}".rstrip())
    if found.settings:
        lines += ["", "settings that differ"]
        lines += [f"{key}: {' | '.join(values)}" for key, values in found.settings]
    return "\n".join(lines)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else number(value)
