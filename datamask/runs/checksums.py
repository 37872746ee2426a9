"""Comparing the files of a unit with their checksums, before their content is used."""

from __future__ import annotations

from datamask.errors import CorruptFileError
from datamask.runs.run import Run
from datamask.runs.stages import companions
from datamask.storage.local import sha256_of
from datamask.storage.protocol import Storage


def files_of(run: Run, stage: str, unit: int = 0) -> list[str]:
    """The names of a unit's files, its own last."""
    made_with = companions(stage, unit)
    if stage == "report":
        for folder in ("report/*.parquet", "report/*.json", "pictures/*.png"):
            made_with += run.storage.list(*folder.split("/"))
    return [*made_with, run.name(stage, unit)]


def refuse_damaged(run: Run, stage: str, unit: int = 0) -> None:
    """Compare all files of a unit with their checksums.

    A damaged file is set aside together with the unit's own file, so that the next launch makes
    both again. Files without a checksum are not compared.

    Raises:
        CorruptFileError: a file is damaged.
    """
    own = run.name(stage, unit)
    for name in files_of(run, stage, unit):
        if not _damage(run.storage, name):
            continue
        with run.storage.lock(run.lock_of(stage, unit)):
            # Another process may have replaced the file, its checksum first.
            damage = _damage(run.storage, name)
            for spoilt in {name, own} if damage else ():
                run.storage.set_aside(spoilt)
        if damage:
            raise CorruptFileError(
                f"{run.address}/{name}: {damage}; the file was renamed to {name}.corrupt; "
                "relaunch, which makes the file again"
            )


def _damage(storage: Storage, name: str) -> str:
    """How the bytes of a file differ from those that were written; empty if they do not."""
    noted = storage.noted_sha256(name)
    try:
        path = storage.fetch(name)
    except CorruptFileError:
        return "damaged in the object store"
    if not noted or not path.exists() or (read := sha256_of(path)[0]) == noted:
        return ""
    return f"SHA-256 is {read[:12]}…, {noted[:12]}… was written"
