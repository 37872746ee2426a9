"""The charts as PNG files (`RUN/pictures/KEY.png`), for dataset cards and slides."""

from __future__ import annotations

from collections.abc import Iterable

from datamask.report.charts import Chart, png
from datamask.runs.files import replace_file
from datamask.storage.protocol import Storage


def write_pictures(storage: Storage, folder: str, charts: Iterable[Chart]) -> None:
    """Write one file per chart with values, and remove all other pictures in the folder.

    Args:
        storage: of the run.
        folder: in the storage.
        charts: the charts to draw.
    """
    drawn = {f"{folder}/{chart.key}.png": chart for chart in charts if chart.has_values}
    for name in storage.list(folder, "*.png"):
        if name not in drawn:
            storage.remove(name)
    for name, chart in drawn.items():
        with replace_file(storage.root / name, storage) as temporary:
            temporary.write_bytes(png(chart))
