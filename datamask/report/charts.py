"""Specify charts in Vega-Lite; render them as SVG for pages and as PNG files.

vl-convert renders both from the same specification, without a browser, a display or a network, so
pages and pictures agree, and pages need no chart library. The colours are the palette of Okabe and
Ito, distinguishable with any colour vision; series also differ by dash or marker.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from datamask.errors import one_line
from datamask.runs.files import reading, replace_file, write_text_file
from datamask.runs.run import Run
from datamask.showing import figure
from datamask.storage.contents import parse_json
from datamask.storage.local import Storage

CAPTIONS = "report/captions.json"
"""File of titles and notes of the report's pictures."""

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999933")
GREY = "#8C8C8C"
DASHES = ((1, 0), (6, 4), (2, 2), (6, 3, 2, 3))
MARKERS = ("circle", "square", "diamond", "cross", "triangle-up", "triangle-down", "triangle-right")
GLYPHS = "●■◆✚▲▼▶"
"""The markers as text, for the legend of a page."""
VEGA_LITE = "6.1"
MOST_IN_LEGEND = 8
MOST_VISIBLE_POINTS = 40
"""Number of points above which lines have no markers."""


INK, LINE = "#1b1f24", "#d0d7de"
"""Colours of everything but the data. `svg` replaces them by the page's variables, which differ in
light and dark mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Values with a name in the legend.

    Args:
        name: in the legend.
        x: numbers, or names of bars.
        y: numbers; None leaves a gap.
        colour: hexadecimal.
        style: index into dashes or markers.
        hover: the text of each value for pointer and keyboard; None shows x and y.
        ranges: lower and upper end of the error bar of each value; empty without error bars.
        labels: written at the values; empty without.
        size: width of a marker in pixels.
        hollow: True if markers are outlines, which leave those beneath visible.
    """

    name: str
    x: Sequence[Any]
    y: Sequence[Any]
    colour: str
    style: int = 0
    hover: Sequence[str] | None = None
    ranges: Sequence[tuple[float, float]] = ()
    labels: Sequence[str] = ()
    size: int = 6
    hollow: bool = False

    @property
    def dashes(self) -> tuple[int, ...]:
        """Lengths of the line's dashes and gaps, in pixels."""
        return DASHES[self.style % len(DASHES)]

    @property
    def marker(self) -> str:
        """The marker's name in Vega."""
        return MARKERS[self.style % len(MARKERS)]

    @property
    def glyph(self) -> str:
        """The marker as text, for the legend of a page."""
        return GLYPHS[self.style % len(GLYPHS)]


def look(number: int) -> dict[str, Any]:
    """Choose colour and style of a series by its *number*, from 0."""
    return {"colour": COLOURS[number % len(COLOURS)], "style": number}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart with its axes.

    Args:
        key: name of the figure in the page and of the picture.
        title: what the chart shows.
        kind: how values become marks.
        x: label of the axis, with its unit.
        y: label of the other axis, with its unit.
        series: drawn in this order.
        note: how to read the chart.
        equal: True if both axes have the same scale and no numbers (a map).
    """

    key: str
    title: str
    kind: Literal["lines", "points", "bars"]
    x: str
    y: str
    series: tuple[Series, ...] = ()
    note: str = ""
    equal: bool = False

    @property
    def is_labelled(self) -> bool:
        """True if values have their names next to them, so that no legend is needed."""
        return all(series.name in series.labels for series in self.series)

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths in pixels of a page's drawings: a wide and a narrow one, or one for both."""
        return (440,) if self.equal else (560, 300)

    def _repr_png_(self) -> bytes:
        """Render the picture that notebooks show."""
        return png(self)


def specification(chart: Chart, width: int, *, is_picture: bool) -> dict[str, Any]:
    """Return the chart in Vega-Lite 6, with its values.

    The layer of series number i has the name `seriesI`; the page's script finds marks by it.
    *width* is the width of the plotting area, in pixels. A picture has a title and a legend, which
    pages write themselves.
    """
    height: int | dict[str, int] = width if chart.equal else 300
    drawing: dict[str, Any] = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": width,
        "height": {"step": 20} if chart.kind == "bars" else height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": _config(width, is_picture=is_picture),
    }
    if is_picture:
        # Vega draws text with line breaks as a block.
        drawing["title"] = {"text": one_line(chart.title), "anchor": "start", "fontSize": 15}
    names = {series.name for series in chart.series}
    has_legend = is_picture and 1 < len(names) <= MOST_IN_LEGEND and not chart.is_labelled
    drawing["layer"] = [
        _series(chart, number, has_legend=has_legend) for number in range(len(chart.series))
    ]
    if chart.kind == "bars":
        zero = {"mark": {"type": "rule", "aria": False}, "encoding": {"x": {"datum": 0}}}
        drawing["layer"].append(zero)
    return {key: _printable(part) for key, part in drawing.items()}


_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _printable(value: Any) -> Any:
    """Replace characters that XML, and therefore SVG, cannot contain."""
    if isinstance(value, str):
        return _NOT_XML.sub("\ufffd", value)
    if isinstance(value, dict):
        return {key: _printable(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(part) for part in value]
    return value


def _config(width: int, *, is_picture: bool) -> dict[str, Any]:
    axis = {"gridColor": LINE, "domainColor": LINE, "tickColor": LINE}
    text = {"labelColor": INK, "titleColor": INK}
    return {
        "background": "white" if is_picture else None,
        "font": ("DejaVu Sans" if is_picture else "Arial, Liberation Sans") + ", sans-serif",
        "view": {"stroke": None},
        "axis": axis | text | {"labelLimit": 0.4 * width, "titleFontWeight": "normal"},
        "legend": text,
        "title": {"color": INK},
        "rule": {"color": INK},
    }


def _series(chart: Chart, number: int, *, has_legend: bool) -> dict[str, Any]:
    """Make one layer: the line or bars of a series, its points and its error bars."""
    series = chart.series[number]
    rows = [
        {"x": x, "y": y, "t": text}
        for x, y, text in zip(series.x, series.y, hover_texts(chart, series), strict=True)
    ]
    across, up = _positions(chart)
    encoding: dict[str, Any] = {"x": across, "y": up}
    looks: dict[str, Any] = {"color": series.colour}
    if has_legend:
        # Legends of the same names become one, with colour and marker or dash.
        legend = {"orient": "bottom", "title": None, "symbolOpacity": 1, "columns": 4}
        values: dict[str, list[Any]] = {"color": [line.colour for line in chart.series]}
        if chart.kind != "bars":
            values["shape"] = [line.marker for line in chart.series]
        if chart.kind == "lines":
            values["strokeDash"] = [list(line.dashes) for line in chart.series]
        for channel, choices in values.items():
            scale = {"domain": [line.name for line in chart.series], "range": choices}
            encoding[channel] = {"datum": series.name, "scale": scale, "legend": legend}
        looks = {}
    description = {"description": {"field": "t"}}
    if chart.kind == "bars":
        # An interval belongs to a value, not to a distance from zero.
        mark = {"type": "point", "filled": True, "size": 90}
        layers = [{"mark": mark | looks, "encoding": description}]
    else:
        layers, opacity = [], 0.45 if series.colour == GREY else 0.85
        if chart.kind == "lines":
            # Many markers would hide the line; invisible ones still react to the pointer.
            opacity = 1.0 if len(series.x) < MOST_VISIBLE_POINTS else 0.0
            line = {"type": "line", "strokeDash": series.dashes, "aria": False}
            layers.append({"mark": line | looks})
        point = {
            "type": "point",
            "filled": not series.hollow,
            "shape": series.marker,
            "size": series.size**2,
            "opacity": 1,
            "fillOpacity": 0 if series.hollow else opacity,
            "strokeWidth": 1 if series.hollow else 0,
        }
        layers.append({"mark": point | looks, "encoding": description})
    if series.labels:
        for row, label in zip(rows, series.labels, strict=True):
            row["label"] = label
        words = {"type": "text", "align": "left", "dx": 9, "dy": -7, "aria": False}
        text = {"field": "label", "type": "nominal"}
        layers.append({"mark": words | {"color": INK}, "encoding": {"text": text}})
    if series.ranges:
        for row, (low, high) in zip(rows, series.ranges, strict=True):
            row |= {"low": low, "high": high}
        along, axis = ("x", across) if chart.kind == "bars" else ("y", up)
        bar = {along: axis | {"field": "low"}, f"{along}2": {"field": "high"}}
        # On a bar of the same colour, an error bar could not be seen.
        line = {"color": INK, "strokeWidth": 2} if chart.kind == "bars" else looks
        layers.append({"mark": {"type": "rule", "aria": False} | line, "encoding": bar})
    name = f"series{number}"
    return {"name": name, "data": {"values": rows}, "encoding": encoding, "layer": layers}


def _positions(chart: Chart) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the encodings of x and y: field, type, scale and axis."""
    across: dict[str, Any] = {"field": "x", "type": "quantitative", "title": one_line(chart.x)}
    up: dict[str, Any] = {"field": "y", "type": "quantitative", "title": one_line(chart.y) or None}
    if chart.kind == "bars":
        names = [one_line(name) for series in chart.series for name in series.x]
        up = {"field": "x", "type": "nominal", "sort": names, "title": None}
        return {**across, "field": "y", "axis": {"tickCount": 6, "labelOverlap": True}}, up
    for encoding in (across, up):
        encoding["scale"] = {"zero": False}
        encoding["axis"] = {"format": ",.10~g", "tickCount": 6}
    places = [x for series in chart.series for x in series.x]
    if all(isinstance(x, int) for x in places):
        across["axis"] = across["axis"] | {"tickMinStep": 1}
        if places and max(places) - min(places) <= 6:  # Vega would add ticks at halves.
            across["axis"] = across["axis"] | {"values": [*range(min(places), max(places) + 1)]}
    if chart.equal:
        bare = {"labels": False, "ticks": False, "grid": False}
        for encoding, domain in zip((across, up), _square(chart), strict=True):
            encoding |= {"scale": {"domain": domain}, "axis": bare}
    return across, up


def _square(chart: Chart) -> list[list[float]]:
    """Return domains of x and y with equal width around the values."""
    ends = []
    for name in ("x", "y"):
        values = [value for series in chart.series for value in getattr(series, name)] or [0.0]
        ends.append((min(values), max(values)))
    half = 0.52 * max(*(high - low for low, high in ends), 1e-9)
    return [[(low + high) / 2 - half, (low + high) / 2 + half] for low, high in ends]


def hover_texts(chart: Chart, series: Series) -> list[str]:
    """Return the text of each value that pointer, keyboard and screen reader present."""
    texts = list(series.hover or ())
    if not texts:
        texts = [
            f"{x if isinstance(x, str) else figure(x)}: {figure(y, 5)}"
            for x, y in zip(series.x, series.y, strict=True)
        ]
    has_names = len(chart.series) > 1 or chart.kind == "bars"
    return [f"{series.name}: {text}" if has_names else text for text in texts]


def svg(chart: Chart, width: int) -> str:
    """Render the chart as an SVG element in the page's colours; each mark has an `aria-label`."""
    import vl_convert

    drawn: str = vl_convert.vegalite_to_svg(
        specification(chart, width, is_picture=False), vl_version=VEGA_LITE
    )
    # Hundredths of a pixel are precise enough and halve the size.
    drawn = re.sub(
        r' (?:d|transform)="[^"]*"', lambda match: re.sub(r"(\.\d\d)\d+", r"\1", match[0]), drawn
    )
    drawn = drawn.replace(' aria-roledescription="point"', "")
    # A series without values would be a picture without a name to a screen reader.
    drawn = re.sub(r'<g [^>]*role="graphics-symbol"[^>]*/>', "", drawn)
    for colour, variable in ((INK, "--ink"), (LINE, "--line")):
        drawn = drawn.replace(f'"{colour}"', f'"var({variable})"')
    return drawn


def png(chart: Chart) -> bytes:
    """Render the chart as a PNG file with title and legend on a white background."""
    import vl_convert

    made = specification(chart, 460 if chart.equal else 640, is_picture=True)
    drawn: bytes = vl_convert.vegalite_to_png(made, vl_version=VEGA_LITE, scale=1.5)
    return drawn


def write_pictures(storage: Storage, charts: Iterable[Chart]) -> None:
    """Write one file per chart with values to `pictures/`, and remove all other pictures there."""
    drawn = {f"pictures/{chart.key}.png": chart for chart in charts if chart.series}
    for name in storage.list("pictures", "*.png"):
        if name not in drawn:
            storage.remove(name)
    for name, chart in drawn.items():
        with replace_file(storage.root / name, storage) as temporary:
            temporary.write_bytes(png(chart))


def write_captions(run: Run, charts: Iterable[Chart]) -> None:
    """Write title and note of the report's pictures, by their names, for the dataset card."""
    captions = {chart.key: (chart.title, chart.note) for chart in charts}
    write_text_file(run.root / CAPTIONS, json.dumps(captions, indent=1), run.storage)


def read_captions(run: Run) -> dict[str, tuple[str, str]]:
    """Read title and note of the report's pictures; empty if there are none."""
    path = run.fetch(run.root / CAPTIONS)
    with reading(path):
        return dict(parse_json(path.read_bytes())) if path.exists() else {}
