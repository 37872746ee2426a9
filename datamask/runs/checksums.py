"""The files of a unit of work, and comparing all of them with their checksums."""

from __future__ import annotations

from datamask.runs.run import Run
from datamask.runs.stages import companions


def files_of(run: Run, stage: str, unit: int = 0) -> list[str]:
    """The names of a unit's files, its own last."""
    made_with = companions(stage, unit)
    if stage == "report":
        for folder in ("report/*.parquet", "report/*.json", "pictures/*.png"):
            made_with += run.storage.list(*folder.split("/"))
    return [*made_with, run.name(stage, unit)]


def refuse_damaged(run: Run, stage: str, unit: int = 0) -> None:
    """Compare all files of a unit with their checksums. Raises as `Run.fetch`."""
    for name in files_of(run, stage, unit):
        run.fetch(name)
