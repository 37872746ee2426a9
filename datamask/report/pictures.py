"""The charts as PNG files (`RUN/pictures/KEY.png`), for dataset cards and slides."""

from __future__ import annotations

import json
from collections.abc import Iterable

from datamask.report.charts import Chart, png
from datamask.runs.files import replace_file
from datamask.runs.run import Run
from datamask.storage.protocol import Storage

CAPTIONS = "report/captions.json"


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


def write_captions(run: Run, charts: Iterable[Chart]) -> None:
    """Write title and note of the report's pictures, by their names, for the dataset card."""
    found = {chart.key: (chart.title, chart.note) for chart in charts}
    with replace_file(run.root / CAPTIONS, run.storage) as temporary:
        temporary.write_text(json.dumps(found, indent=1), encoding="utf-8")


def read_captions(run: Run) -> dict[str, tuple[str, str]]:
    """Title and note of the report's pictures; empty if there are none."""
    path = run.fetch(run.root / CAPTIONS)
    return json.loads(path.read_bytes()) if path.exists() else {}
