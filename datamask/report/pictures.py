"""The charts as PNG files, for a dataset card or a slide: `RUN/pictures/KEY.png`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from datamask.report.charts import Chart, png
from datamask.runs.files import replace_file
from datamask.storage.location import names_in, remove_file


def write_pictures(folder: Path, charts: Iterable[Chart], root: Path | None = None) -> None:
    """Draw charts, one file each; pictures of charts that no longer exist are removed.

    Args:
        folder: where they go.
        charts: what is drawn; those without values are left out.
        root: the run's folder, if checksums are kept there.
    """
    drawn = {f"{chart.key}.png": chart for chart in charts if chart.has_values}
    for path in names_in(folder, "*.png"):
        if path.name not in drawn:
            remove_file(path)
    for name, chart in drawn.items():
        with replace_file(folder / name, root=root) as temporary:
            temporary.write_bytes(png(chart))
