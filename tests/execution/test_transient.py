"""Every command attempts passing faults again, and the status says if waiting helps."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable

import duckdb
import fsspec
import pyarrow as pa
import pytest

from datamask import errors
from datamask.runs import retrying
from datamask.source.opening import list_files
from datamask.storage import file_locks
from datamask.storage.object_store import ObjectStore
from tests.cli.commands import here

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

MOST = 1 + len(retrying.PAUSES)

TRANSIENT: dict[str, Callable[[], Exception]] = {
    "no space": lambda: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    "quota": lambda: OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
    "no space, by Arrow": lambda: pa.ArrowException("IOError: No space left on device"),
    "no space, by DuckDB": lambda: duckdb.IOException('Could not write "x": No space left on dev'),
    "no space, by safetensors": lambda: RuntimeError("IoError(Os { code: 28, kind: StorageFull })"),
    "input and output": lambda: OSError(errno.EIO, os.strerror(errno.EIO)),
    "stale handle": lambda: OSError(errno.ESTALE, os.strerror(errno.ESTALE)),
    "time-out": lambda: TimeoutError("timed out"),
    "connection": lambda: ConnectionResetError(errno.ECONNRESET, "reset"),
    "store": lambda: errors.StorageError("s3://a/b: SlowDown; try again"),
    "hub": lambda: errors.HubUnavailableError("503"),
    "device": lambda: errors.DeviceMemoryError("one text does not fit"),
    "no memory": lambda: MemoryError(),
    "no memory, by Arrow": lambda: pa.ArrowMemoryError("malloc of size 64 failed"),
    "no memory, by torch": lambda: RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    "no memory, by the system": lambda: OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
    "no memory, by the loader": lambda: ImportError(
        "x.so: failed to map segment from shared object"
    ),
    "no thread": lambda: RuntimeError("can't start new thread"),
}
LASTING: dict[str, Callable[[], Exception]] = {
    "input": lambda: errors.InputError("bad"),
    "permission": lambda: PermissionError(errno.EACCES, "denied"),
    "corrupt": lambda: errors.CorruptFileError("damaged"),
}
BUG: dict[str, Callable[[], Exception]] = {"bug": lambda: KeyError("shard")}

STATUSES = {
    **{("hub", "scores"): 75, ("input", "scores"): 2, ("bug", "scores"): 70},
    **{("no space, by Arrow", "quality"): 75, ("input", "quality"): 2, ("bug", "quality"): 70},
}
"""Exit statuses, as docs/failures.md has them, of errors in each shard and in a whole stage."""

ERRORS = TRANSIENT | LASTING | BUG

MIXED = {
    ("no space", "input"): 2,
    ("input", "no space", "bug"): 2,
    ("bug", "no space"): 70,
    ("no space", "hub", "no thread"): 75,
}
"""Errors of the first shards, and the exit status."""


def test_what_is_transient_is_known_of_every_library():
    """By the error alone, which decides attempts and status, and by what is reported of it."""
    assert {name for name, make in ERRORS.items() if errors.is_transient(make())} == {*TRANSIENT}
    statuses = {name: errors.exit_status(errors.known(make())) for name, make in ERRORS.items()}
    due = dict.fromkeys(TRANSIENT, 75) | dict.fromkeys(LASTING, 2) | dict.fromkeys(BUG, 70)
    assert statuses == due


@pytest.mark.parametrize(("name", "stage"), STATUSES)
def test_the_status_says_whether_the_same_command_may_succeed(
    name, stage, planned, failing, capsys
):
    """Transient errors are attempted four times and end with 75; the others once, with 2 or 70."""
    status = STATUSES[name, stage]
    counts = failing(lambda at, unit, number: ERRORS[name]() if at == stage else None)
    assert here("-q", "rerun-failed", planned.root) == status
    units = [None] if stage == "quality" else [0, 1, 2]
    assert counts == dict.fromkeys(units, MOST if status == 75 else 1)
    printed = capsys.readouterr().err.splitlines()
    assert sum(line.startswith("datamask: ") for line in printed) == 1


@pytest.mark.parametrize("names", MIXED)
def test_what_the_user_must_fix_decides_the_status(names, planned, failing):
    """Of several reasons, one to fix comes first, then a bug; only transient ones are repeated."""

    def choose(stage: str, unit: int | None, number: int) -> Exception | None:
        return ERRORS[names[unit]]() if unit is not None and unit < len(names) else None

    counts = failing(choose)
    assert here("-q", "rerun-failed", planned.root) == MIXED[names]
    assert counts == {unit: MOST if name in TRANSIENT else 1 for unit, name in enumerate(names)}


def test_a_report_is_attempted_again(composed, tmp_path, failing):
    """A full disk is attempted four times by a command that does not rebuild, and ends with 75."""
    root = shutil.copytree(composed.root, tmp_path / "run")
    full = ERRORS["no space, by Arrow"]
    counts = failing(lambda stage, unit, number: full())

    assert here("-q", "report", root) == 75
    assert counts and MOST in counts.values()


def test_a_lock_on_a_full_disk_is_held_without_a_name(tmp_path, monkeypatch):
    """A process that cannot write its name into a lock does not wait for itself ever after."""

    def full(*given: object) -> int:
        raise ERRORS["no space"]()

    monkeypatch.setattr(os, "pwrite", full)
    for _ in range(2):
        with file_locks.held(tmp_path / "a.lock", None, "run") as is_ours:
            assert is_ours
    assert not (tmp_path / "a.lock").exists()


def test_libraries_that_do_not_fit_are_a_lack_of_memory(tmp_path):
    """Also those that the command imports before it has read its arguments (`ulimit -v`)."""
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({150 * 2**20},) * 2); "
    command = [sys.executable, "-c", f"{limit}from datamask.cli import run; run()", "status", "x"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 75, done.stderr
    assert len(done.stderr.splitlines()) == 1 and "a bug" not in done.stderr


def test_a_client_that_does_not_fit_is_a_lack_of_memory(tmp_path, monkeypatch):
    """For a source and for a run; fsspec says of any failed import that a package is missing."""
    message = "libfrail.so: failed to map segment from shared object"
    (tmp_path / "frail.py").write_text(f"raise ImportError({message!r})")
    monkeypatch.syspath_prepend(tmp_path)
    fsspec.register_implementation("frail", "frail.Store", errtxt="install frail")
    for call in (list_files, lambda url: ObjectStore(url).list("")):
        with pytest.raises(Exception) as caught:
            call("frail://bucket/run")
        assert errors.exit_status(errors.known(caught.value)) == 75
