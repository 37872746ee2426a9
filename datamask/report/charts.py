"""What a chart shows, whoever draws it: plotly in the page, matplotlib in the pictures.

Both draw from the same values, so page and pictures cannot disagree. Colours are Okabe and Ito's,
which people with any colour vision can tell apart; series differ by dash or marker as well.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999933")
GREY = "#8C8C8C"
DASHES = ("solid", "dash", "dot", "dashdot")
MARKERS = ("circle", "square", "diamond", "cross", "triangle-up", "x", "star")
SCALE = ((0.0, "#F7FBFF"), (0.5, "#6BAED6"), (1.0, "#08306B"))
"""Of a heat map: one hue, from light to dark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Some values under one name.

    Args:
        name: in the legend.
        x: numbers, or names for bars.
        y: numbers, as many; None leaves a gap.
        colour: hexadecimal.
        style: index into dashes or markers.
        hover: what is told of each value; None tells x and y.
        low: lower ends of error bars.
        high: upper ends.
        other_x: the same values over the chart's other axis.
        size: of a marker, in pixels.
    """

    name: str
    x: Sequence[Any]
    y: Sequence[Any]
    colour: str
    style: int = 0
    hover: Sequence[str] | None = None
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    other_x: Sequence[Any] | None = None
    size: int = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart with its axes.

    Args:
        key: its name in the page and of its picture.
        title: what it shows, as one would say it.
        kind: how values become marks; `cells` is a heat map of `z`.
        x: what the x axis shows, with its unit.
        y: the y axis.
        series: drawn in this order.
        note: how to read it, in a sentence or two.
        other_x: label of the other x axis that readers may switch to.
        log_y: whether the y axis is logarithmic.
        log_x: the x axis.
        equal: whether both axes have one scale and no numbers (a map).
        z: for `cells`: rows of shares in [0, 1]; None where there is nothing.
        z_label: what a cell's colour means.
        z_counts: documents in each cell.
    """

    key: str
    title: str
    kind: Literal["lines", "points", "bars", "cells"]
    x: str
    y: str
    series: tuple[Series, ...] = ()
    note: str = ""
    other_x: str = ""
    log_y: bool = False
    log_x: bool = False
    equal: bool = False
    z: Sequence[Sequence[float | None]] = ()
    z_label: str = ""
    z_counts: Sequence[Sequence[int]] = ()

    @property
    def height(self) -> float:
        """Of the chart in the page, in rem; 0 where the page decides."""
        if self.kind != "bars":
            return 0.0
        return 5.0 + 1.35 * sum(len(series.x) for series in self.series)


def plotly(chart: Chart) -> dict[str, Any]:
    """The chart as plotly's traces and layout, and what the page's script adds to them.

    Text from the data is escaped where plotly would read markup in it; what is told on hovering is
    not, because the page shows it as text.
    """
    axes = {"xaxis": _axis(chart.x, chart.equal), "yaxis": _axis(chart.y, chart.equal)}
    for name, logarithmic in (("x", chart.log_x), ("y", chart.log_y)):
        if logarithmic:
            values = [v for one in chart.series for v in getattr(one, name) if v]
            axes[f"{name}axis"] |= {"type": "log"} | _ticks(values)
    if chart.equal:
        axes["yaxis"]["scaleanchor"] = "x"
    if chart.kind == "bars":
        axes["yaxis"] |= {"automargin": True, "autorange": "reversed", "type": "category"}
        axes["yaxis"]["dtick"] = 1
    if chart.kind == "cells":
        axes["xaxis"]["type"] = axes["yaxis"]["type"] = "category"
    traces = [_cells(chart)] if chart.kind == "cells" else [_trace(chart, s) for s in chart.series]
    return {
        "key": chart.key,
        "traces": traces,
        "layout": axes | {"barmode": "overlay"},
        "other": [list(series.other_x or ()) for series in chart.series],
        "labels": [chart.x, chart.other_x],
        "hover": [list(series.hover or ()) for series in chart.series],
        "names": [series.name for series in chart.series],
        "bars": chart.kind == "bars",
    }


def _axis(title: str, bare: bool) -> dict[str, Any]:
    axis: dict[str, Any] = {"title": {"text": html.escape(title)}, "zeroline": False}
    if bare:
        axis |= {"showticklabels": False, "ticks": "", "showgrid": False}
    return axis


def _ticks(values: Sequence[float]) -> dict[str, Any]:
    """Ticks of a logarithmic axis, written out: 1, 3, 10, 30, ..."""
    powers = range(-6, 13)
    all_ticks = [factor * 10.0**power for power in powers for factor in (1, 3)]
    low, high = (min(values), max(values)) if values else (1, 10)
    shown = [tick for tick in all_ticks if low / 3 < tick < high * 3]
    return {"tickvals": shown, "ticktext": [f"{tick:,.6g}" for tick in shown]}


def _trace(chart: Chart, series: Series) -> dict[str, Any]:
    trace: dict[str, Any] = {
        "name": html.escape(series.name),
        "x": list(series.x),
        "y": list(series.y),
        "hoverinfo": "none",
    }
    if chart.kind == "bars":
        return trace | {
            "type": "bar",
            "orientation": "h",
            "x": list(series.y),
            "y": [html.escape(str(name)) for name in series.x],
            "marker": {"color": series.colour},
        }
    trace |= {
        "type": "scatter",
        "mode": "lines" if chart.kind == "lines" else "markers",
        "line": {"color": series.colour, "dash": DASHES[series.style % len(DASHES)], "width": 2},
        "marker": {
            "color": series.colour,
            "symbol": MARKERS[series.style % len(MARKERS)],
            "size": series.size,
            "opacity": 0.85 if series.colour != GREY else 0.45,
        },
    }
    if len(series.x) < 40 and chart.kind == "lines":
        trace["mode"] = "lines+markers"
    if series.low is not None and series.high is not None:
        trace["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": [high - y for high, y in zip(series.high, series.y, strict=True)],
            "arrayminus": [y - low for low, y in zip(series.low, series.y, strict=True)],
            "color": series.colour,
        }
    return trace


def _cells(chart: Chart) -> dict[str, Any]:
    size_x, size_y = len(chart.z[0]), len(chart.z)
    return {
        "type": "heatmap",
        "x": [str(place + 1) for place in range(size_x)],
        "y": [str(place + 1) for place in range(size_y)],
        "z": [list(row) for row in chart.z],
        "customdata": [list(row) for row in chart.z_counts],
        "zmin": 0,
        "zmax": 1,
        "colorscale": [list(stop) for stop in SCALE],
        "colorbar": {"title": {"text": html.escape(chart.z_label)}, "tickformat": ".0%"},
        "hoverinfo": "none",
        "xgap": 1,
        "ygap": 1,
    }
