"""The charts as PNG files, for a dataset card or a slide: `RUN/pictures/KEY.png`."""

from __future__ import annotations

from collections.abc import Iterable

from datamask.report.charts import Chart, png
from datamask.runs.files import replace_file
from datamask.storage.protocol import Storage


def write_pictures(storage: Storage, folder: str, charts: Iterable[Chart]) -> None:
    """Draw charts, one file each; pictures of charts that no longer exist are removed.

    Args:
        storage: of the run.
        folder: where they go in it.
        charts: what is drawn; those without values are left out.
    """
    drawn = {f"{folder}/{chart.key}.png": chart for chart in charts if chart.has_values}
    for name in storage.list(folder, "*.png"):
        if name not in drawn:
            storage.remove(name)
    for name, chart in drawn.items():
        with replace_file(storage.root / name, storage) as temporary:
            temporary.write_bytes(png(chart))
