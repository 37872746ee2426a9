"""Charts: what each shows, as one Vega-Lite specification for the page (SVG) and for PNG files.

vl-convert renders both without a browser, a display or a network, so page and pictures cannot
disagree, and the page needs no chart library. Colours are Okabe and Ito's, which people with any
colour vision can tell apart; series differ by dash or marker as well.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999933")
GREY = "#8C8C8C"
DASHES = ((1, 0), (6, 4), (2, 2), (6, 3, 2, 3))
MARKERS = ("circle", "square", "diamond", "cross", "triangle-up", "triangle-down", "triangle-right")
SCALE = ("#F7FBFF", "#6BAED6", "#08306B")
"""Of a heat map: one hue, from light to dark."""

VEGA_LITE = "6.1"
MOST_IN_LEGEND = 8
MOST_VISIBLE_POINTS = 40
"""A line of more points shows none of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """Colours and font of everything that is not data."""

    ink: str
    line: str
    background: str | None
    font: str


PAGE = Theme(
    ink="#000001", line="#000002", background=None, font="Arial, Liberation Sans, sans-serif"
)
"""Its colours stand for the page's own, which differ by day and night."""
PICTURE = Theme(ink="#1b1f24", line="#d0d7de", background="white", font="DejaVu Sans, sans-serif")


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Some values under one name.

    Args:
        name: in the legend.
        x: numbers, or names for bars.
        y: numbers, as many; None leaves a gap.
        colour: hexadecimal.
        style: index into dashes or markers.
        hover: the text of each value for pointer and keyboard; None shows x and y.
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
        z_counts: documents in each cell; empty unless `cells`.
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
    def has_values(self) -> bool:
        """Whether there is anything to draw."""
        return bool(self.series or self.z)

    @property
    def widths(self) -> tuple[int, ...]:
        """Of the drawings a page needs, in pixels: a wide and a narrow one, or one for both."""
        return (440,) if self.equal or self.kind == "cells" else (560, 300)


def specification(
    chart: Chart, theme: Theme, width: int, *, legend: bool = False, other_x: bool = False
) -> dict[str, Any]:
    """The chart in Vega-Lite 6, its values inside.

    Series number i is the layer named `seriesI`, so that the page's script can find its marks.

    Args:
        chart: what is shown.
        theme: colours of everything that is not data.
        width: of the plotting area, in pixels.
        legend: whether title and legend are part of the drawing.
        other_x: whether the chart's other x axis is used.
    """
    found: dict[str, Any] = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": width,
        "height": _height(chart, width),
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": _config(theme, width),
    }
    if legend:
        found["title"] = {"text": _text(chart.title), "anchor": "start", "fontSize": 15}
    if chart.kind == "cells":
        found |= _cells(chart, theme)
        return {key: _printable(part) for key, part in found.items()}
    names = [series.name for series in chart.series]
    has_legend = legend and 1 < len(set(names)) <= MOST_IN_LEGEND
    layers = [
        _series(chart, number, has_legend=has_legend, other_x=other_x)
        for number in range(len(chart.series))
    ]
    if chart.kind == "bars":
        layers.append({"mark": {"type": "rule", "aria": False}, "encoding": {"x": {"datum": 0}}})
    found["layer"] = layers
    return {key: _printable(part) for key, part in found.items()}


_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _printable(value: Any) -> Any:
    """The same with a replacement character for each one that XML, and so SVG, cannot hold."""
    if isinstance(value, str):
        return _NOT_XML.sub("\ufffd", value)
    if isinstance(value, dict):
        return {key: _printable(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(part) for part in value]
    return value


def _height(chart: Chart, width: int) -> int | dict[str, int]:
    if chart.kind == "bars":
        return {"step": 20}
    return width if chart.equal else 300


def _config(theme: Theme, width: int) -> dict[str, Any]:
    axis = {"gridColor": theme.line, "domainColor": theme.line, "tickColor": theme.line}
    text = {"labelColor": theme.ink, "titleColor": theme.ink}
    return {
        "background": theme.background,
        "font": theme.font,
        "view": {"stroke": None},
        "axis": axis | text | {"labelLimit": 0.4 * width, "titleFontWeight": "normal"},
        "legend": text,
        "title": {"color": theme.ink},
        "rule": {"color": theme.ink},
    }


def _text(value: object) -> str:
    # One line: Vega would make a list of lines a block.
    return " ".join(str(value).split())


def _series(chart: Chart, number: int, *, has_legend: bool, other_x: bool) -> dict[str, Any]:
    """One layer: the line or bars of a series, its points and its error bars."""
    series = chart.series[number]
    x_values = series.other_x if other_x and series.other_x is not None else series.x
    rows = [
        {"x": x, "y": y, "t": text}
        for x, y, text in zip(x_values, series.y, hover_texts(chart, series), strict=True)
    ]
    for name, ends in (("low", series.low), ("high", series.high)):
        for row, end in zip(rows, ends or (), strict=False):
            row[name] = end
    across, up = _positions(chart, other_x=other_x)
    encoding: dict[str, Any] = {"x": across, "y": up}
    looks: dict[str, Any] = {"color": series.colour}
    if has_legend:
        names = [one.name for one in chart.series]
        colours = [one.colour for one in chart.series]
        scale = {"domain": names, "range": colours}
        legend = {"orient": "bottom", "title": None, "symbolOpacity": 1, "columns": 4}
        encoding["color"] = {"datum": series.name, "scale": scale, "legend": legend}
        looks = {}
    told = {"description": {"field": "t"}}
    if chart.kind == "bars":
        layers = [{"mark": {"type": "bar"} | looks, "encoding": told}]
    else:
        layers = []
        if chart.kind == "lines":
            dashes = DASHES[series.style % len(DASHES)]
            line = {"type": "line", "strokeDash": dashes, "aria": False} | looks
            layers.append({"mark": line})
        point = {
            "type": "point",
            "filled": True,
            "shape": MARKERS[series.style % len(MARKERS)],
            "size": series.size**2,
            "opacity": _opacity(chart, series),
            "strokeWidth": 0,
        }
        layers.append({"mark": point | looks, "encoding": told})
    if series.low is not None and series.high is not None:
        bar = {"y": up | {"field": "low"}, "y2": {"field": "high"}}
        layers.append({"mark": {"type": "rule", "aria": False} | looks, "encoding": bar})
    name = f"series{number}"
    return {"name": name, "data": {"values": rows}, "encoding": encoding, "layer": layers}


def _opacity(chart: Chart, series: Series) -> float:
    if chart.kind == "lines":
        # Many points would hide the line; they stay where the pointer can find them.
        return 1.0 if len(series.x) < MOST_VISIBLE_POINTS else 0.0
    return 0.45 if series.colour == GREY else 0.85


def _positions(chart: Chart, *, other_x: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The encodings of x and y: field, type, scale and axis."""
    label = chart.other_x if other_x else chart.x
    across: dict[str, Any] = {"field": "x", "type": "quantitative", "title": _text(label)}
    up: dict[str, Any] = {"field": "y", "type": "quantitative", "title": _text(chart.y) or None}
    if chart.kind == "bars":
        names = [_text(name) for series in chart.series for name in series.x]
        up = {"field": "x", "type": "nominal", "sort": names, "title": None}
        return {**across, "field": "y"}, up
    for encoding, logarithmic in ((across, chart.log_x), (up, chart.log_y)):
        encoding["scale"] = {"type": "log"} if logarithmic else {"zero": False}
        encoding["axis"] = {"format": ",.6~g", "tickCount": 6}
    if all(isinstance(x, int) for series in chart.series for x in series.x) and not other_x:
        across["axis"] = across["axis"] | {"tickMinStep": 1}
    if chart.equal:
        bare = {"labels": False, "ticks": False, "grid": False}
        for encoding, domain in zip((across, up), _square(chart), strict=True):
            encoding |= {"scale": {"domain": domain}, "axis": bare}
    return across, up


def _square(chart: Chart) -> list[list[float]]:
    """Domains of x and y of the same width around the values."""
    ends = []
    for name in ("x", "y"):
        values = [value for series in chart.series for value in getattr(series, name)] or [0.0]
        ends.append((min(values), max(values)))
    half = 0.52 * max(*(high - low for low, high in ends), 1e-9)
    return [[(low + high) / 2 - half, (low + high) / 2 + half] for low, high in ends]


def hover_texts(chart: Chart, series: Series) -> list[str]:
    """What is shown of each value when the pointer or the keyboard reaches it."""
    texts = list(series.hover or ())
    if not texts:
        seconds = series.other_x or ()
        texts = [
            f"step {x}, {seconds[place]} s: {y:.5g}" if seconds else f"{x}: {y:.5g}"
            for place, (x, y) in enumerate(zip(series.x, series.y, strict=True))
        ]
    has_names = len(chart.series) > 1 or chart.kind == "bars"
    return [f"{series.name}: {text}" if has_names else text for text in texts]


def _cells(chart: Chart, theme: Theme) -> dict[str, Any]:
    """A heat map: one rectangle per cell, grey where there is no document."""
    rows = []
    for i, shares in enumerate(chart.z):
        for j, share in enumerate(shares):
            where = f"quality tenth {i + 1}, density tenth {j + 1}"
            kept = "no document" if share is None else f"{share:.1%} of {chart.z_counts[i][j]} kept"
            rows.append({"x": j + 1, "y": i + 1, "z": share, "t": f"{where}: {kept}"})
    axis = {"labelAngle": 0, "grid": False, "domain": False, "ticks": False}
    legend = {"title": _text(chart.z_label), "format": ".0%", "gradientLength": 200}
    scale = {"domain": [0, 1], "range": list(SCALE)}
    return {
        "name": "series0",
        "data": {"values": rows},
        "mark": {"type": "rect", "stroke": theme.line, "strokeWidth": 0.5, "invalid": None},
        "encoding": {
            "x": {"field": "x", "type": "ordinal", "title": _text(chart.x), "axis": axis},
            "y": {
                "field": "y",
                "type": "ordinal",
                "title": _text(chart.y),
                "axis": axis,
                "sort": "descending",
            },
            "color": {
                "condition": {"test": "datum.z === null", "value": theme.line},
                "field": "z",
                "type": "quantitative",
                "scale": scale,
                "legend": legend,
            },
            "description": {"field": "t"},
        },
    }


def svg(chart: Chart, width: int, *, other_x: bool = False) -> str:
    """The chart as an SVG element for a page, in the page's own colours.

    Each mark says what it is (`aria-label`), for pointers, keyboards and screen readers.
    """
    import vl_convert

    drawn: str = vl_convert.vegalite_to_svg(
        specification(chart, PAGE, width, other_x=other_x), vl_version=VEGA_LITE
    )
    # Hundredths of a pixel are enough, and half the bytes.
    drawn = re.sub(
        r' (?:d|transform)="[^"]*"',
        lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]),
        drawn,
    )
    for colour, variable in ((PAGE.ink, "--ink"), (PAGE.line, "--line")):
        drawn = drawn.replace(f'"{colour}"', f'"var({variable})"')
    return drawn


def png(chart: Chart) -> bytes:
    """The chart as a PNG file on white, because the page that will show it is not known."""
    import vl_convert

    width = 460 if chart.equal else 640
    drawn: bytes = vl_convert.vegalite_to_png(
        specification(chart, PICTURE, width, legend=True), vl_version=VEGA_LITE, scale=1.5
    )
    return drawn
