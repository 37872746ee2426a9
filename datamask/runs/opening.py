"""Create and open runs: run.json, and the storage of a folder or URL."""

from __future__ import annotations

import functools
import importlib.metadata
import json

from datamask.config.loading import parse_settings
from datamask.config.settings import Settings
from datamask.errors import CorruptFileError, RunError
from datamask.runs.files import write_text_file
from datamask.runs.receipt import fingerprint_in
from datamask.runs.run import Run, digest
from datamask.runs.stages import owner_of
from datamask.storage.contents import Contents, ReadFingerprint, parse_json
from datamask.storage.local import Storage
from datamask.storage.location import Root, open_storage


def create_run(root: Root, settings: Settings, pinned_revisions: dict[str, str]) -> Run:
    """Write or update run.json. New settings make outputs that depend on them stale.

    *pinned_revisions* are revisions and digests that planning has looked up, by `stage:what`
    (`embeddings:model`, `scores:NAME`). They are part of that stage's fingerprint.
    """
    record = {
        "format": 1,
        "settings": settings.given(),
        "pinned_revisions": dict(sorted(pinned_revisions.items())),
        "versions": versions(),
    }
    text = json.dumps({**record, "digest": digest(record)}, indent=2, sort_keys=True) + "\n"
    storage = run_storage(root)
    path = storage.fetch("run.json")
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_text_file(path, text, storage)
    return Run(storage, settings, dict(pinned_revisions))


def run_storage(root: Root) -> Storage:
    """Return the storage of a run, which need not exist yet. Errors are as in `open_storage`."""
    return open_storage(root, Contents(fingerprint_in, owner_of))


def run_exists(root: Root) -> bool:
    """Return True if there is a run in this folder or at this URL."""
    return run_storage(root).fetch("run.json").exists()


def open_run(root: Root, read: ReadFingerprint = fingerprint_in) -> Run:
    """Open a run in a folder or at a URL; *read* reads the fingerprint of a file.

    Raises:
        RunError: there is no run there.
        CorruptFileError: run.json cannot be read.
    """
    storage = open_storage(root, Contents(read, owner_of))
    path = storage.fetch("run.json")
    if not path.exists():
        raise RunError(f"{storage.address}: no run here (run.json is missing)")
    try:
        record = parse_json(path.read_bytes())
        if record.pop("digest") != digest(record):
            raise ValueError("changed by hand or damaged")
        settings = record["settings"]
        if settings.get("embedding", {}).get("keep") is True:
            # Older runs record this setting; today every run keeps its vectors.
            del settings["embedding"]["keep"]
        return Run(storage, parse_settings(settings), record["pinned_revisions"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptFileError(
            f"{path}: not as datamask wrote it ({error}); delete it, then rebuild the run "
            "with the settings that it had (--config); finished work is kept"
        ) from None


def versions() -> dict[str, str]:
    """Versions of this package and of those that affect its outputs."""
    names = ("datamask-pipeline", "torch", "pyarrow", "duckdb", "sentence-transformers", "numpy")
    installed = {name: _version(name) for name in (*names, "scikit-learn")}
    return {name: version for name, version in installed.items() if version is not None}


# Reading them takes some milliseconds, and a process plans many runs.
@functools.cache
def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
