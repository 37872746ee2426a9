"""The charts as PNG files, for a dataset card or a slide: `RUN/pictures/KEY.png`.

Drawn by matplotlib without a display, a browser or the clock: the same run gives the same bytes.
They stand on white, because nobody knows the background of the page that will show them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from datamask.report.charts import GREY, SCALE, Chart, Series
from datamask.runs.files import replace_file
from datamask.storage.location import names_in, remove_file

LINES = ("-", "--", ":", "-.")
POINTS = ("o", "s", "D", "P", "^", "X", "*")
DPI = 120


def write_pictures(folder: Path, charts: Iterable[Chart], root: Path | None = None) -> None:
    """Draw charts, one file each; pictures of charts that are no more are removed.

    Args:
        folder: where they go.
        charts: what is drawn; those without values are left out.
        root: the run's folder, if checksums are kept there.
    """
    drawn = {f"{chart.key}.png": chart for chart in charts if chart.series or chart.z}
    for path in names_in(folder, "*.png"):
        if path.name not in drawn:
            remove_file(path)
    for name, chart in drawn.items():
        with replace_file(folder / name, root=root) as temporary:
            temporary.write_bytes(picture(chart))


def picture(chart: Chart) -> bytes:
    """A chart as the bytes of a PNG file."""
    import io

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # No pyplot: it keeps global state and is not safe in threads.
    height = 6.4 if chart.equal else 4.2
    if chart.kind == "bars":
        height = 1.3 + 0.26 * sum(len(series.x) for series in chart.series)
    figure = Figure(figsize=(7.2, height), dpi=DPI)
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    if chart.kind == "bars":
        # Long names need room that has to be measured, which takes as long as drawing.
        figure.set_layout_engine("constrained")
    else:
        figure.subplots_adjust(0.11, 0.55 / height, 0.98, 1 - 0.4 / height)
    axes.set_title(_plain(chart.title), loc="left", fontsize=12)
    axes.set_xlabel(_plain(chart.x))
    axes.set_ylabel(_plain(chart.y))
    if chart.kind == "cells":
        _draw_cells(figure, axes, chart)
    else:
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
        for series in chart.series:
            _draw(axes, chart, series)
        if chart.log_y:
            axes.set_yscale("log")
        if chart.log_x:
            axes.set_xscale("log")
        if chart.kind == "bars":
            _name_bars(axes, chart)
        elif 1 < len(chart.series) <= 8:
            axes.legend(frameon=False, fontsize=9)
    if chart.equal:
        axes.set_aspect("equal")
        axes.tick_params(labelbottom=False, labelleft=False, length=0)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _plain(text: object) -> str:
    # A dollar sign would begin a formula.
    return str(text).replace("$", r"\$")


def _draw(axes: Any, chart: Chart, series: Series) -> None:
    label, style = _plain(series.name), series.style
    if chart.kind == "bars":
        names = [name for one in chart.series for name in one.x]
        axes.barh(
            [names.index(name) for name in series.x], series.y, color=series.colour, label=label
        )
        return
    if chart.kind == "points":
        axes.scatter(
            series.x,
            series.y,
            s=series.size**2 / 3,
            c=series.colour,
            marker=POINTS[style % len(POINTS)],
            alpha=0.35 if series.colour == GREY else 0.85,
            linewidths=0,
            label=label,
        )
    else:
        axes.plot(
            series.x,
            series.y,
            color=series.colour,
            linestyle=LINES[style % len(LINES)],
            marker=POINTS[style % len(POINTS)] if len(series.x) < 40 else None,
            markersize=0.7 * series.size,
            label=label,
        )
    if series.low is not None and series.high is not None:
        axes.errorbar(
            series.x,
            series.y,
            yerr=[
                [y - low for low, y in zip(series.low, series.y, strict=True)],
                [high - y for high, y in zip(series.high, series.y, strict=True)],
            ],
            fmt="none",
            ecolor=series.colour,
            capsize=3,
        )


def _name_bars(axes: Any, chart: Chart) -> None:
    names = [name for series in chart.series for name in series.x]
    axes.set_yticks(range(len(names)), [_plain(name) for name in names], fontsize=8)
    axes.invert_yaxis()
    axes.axvline(0, color="#404040", linewidth=0.8)
    if len(chart.series) > 1:
        axes.legend(frameon=False, fontsize=9)


def _draw_cells(figure: Any, axes: Any, chart: Chart) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("kept", list(SCALE)).with_extremes(bad="#E0E0E0")
    values = [[float("nan") if cell is None else cell for cell in row] for row in chart.z]
    shown = axes.imshow(values, origin="lower", cmap=colours, vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(values[0])), [str(place + 1) for place in range(len(values[0]))])
    axes.set_yticks(range(len(values)), [str(place + 1) for place in range(len(values))])
    bar = figure.colorbar(shown, ax=axes, label=_plain(chart.z_label))
    bar.ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
