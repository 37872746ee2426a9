"""Files that killed processes leave are removed, and nothing of living ones or of the user."""

import errno
import fcntl
import os
import subprocess
import threading
import uuid
from pathlib import Path

import pytest

from datamask.execution.pipeline import rebuild
from datamask.storage.temporary import remove_orphans, shared_folder, temporary_folder
from tests import finished
from tests.killed import kill
from tests.storage.conftest import process, wait_for

pytestmark = pytest.mark.usefixtures("undrawn")

WORK = """
import contextlib, sys, time
from pathlib import Path
from datamask.config.compute import Compute
from datamask.runs.files import replace_file
from datamask.runs.opening import run_storage
from datamask.storage.duckdb_scratch import temporary_duckdb
from datamask.storage.temporary import shared_folder
storage = run_storage(sys.argv[1])
with contextlib.ExitStack() as stack:
    stack.enter_context(temporary_duckdb(storage.root, Compute()))
    stack.enter_context(shared_folder(storage.root))
    for name in ("embeddings/00001.parquet", "records/embeddings/00001.parquet.json"):
        made = stack.enter_context(replace_file(storage.root / name, storage))
        made.write_bytes(b"half")
        made.with_name(f"{made.name}.wal").write_bytes(b"a database's log")
    print("working", flush=True)
    time.sleep(120)
"""
FILES = 2 + 2 * 2
"""What that program has in tmp/: a lock of its database, one of all files, two files and logs."""


def start(root: Path) -> subprocess.Popen[str]:
    """A process that is at work in a run."""
    working = process(WORK, str(root))
    wait_for("working", working)
    return working


def files(folder: Path) -> dict[Path, bytes]:
    """Every file below a folder and its bytes; symbolic links are not followed."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_launch_removes_what_killed_processes_left(tmp_path):
    """A launch deletes all temporary files of a killed process and none of a living one."""
    root = rebuild(tmp_path / "run", finished.settings(finished.corpus(tmp_path / "source"))).root
    assert not (root / "tmp").exists()
    first = start(root)
    of_first = files(root / "tmp").keys()
    start(root)
    both = files(root / "tmp").keys()
    assert (len(of_first), len(both)) == (FILES, 2 * FILES)
    assert not remove_orphans(root)
    kill(first)
    (root / "subset" / "train-00000-of-00002.parquet").unlink()
    rebuild(root)  # works while the second does
    assert files(root / "tmp").keys() == both - of_first


def test_only_its_own_orphans_are_removed(tmp_path):
    """Drafts, look-alikes, what links lead to, and a living run in the run's folder all stay."""
    root, other = tmp_path / "runs", tmp_path / "other"
    some = uuid.uuid4().hex
    users = [
        root / ".draft.tmp",
        root / "notes" / f".thesis.{some}.tmp",
        root / "selection" / f".00001.parquet.{some}.tmp",
        root / ".duckdb-mine" / "work.duckdb",
        root / "tmp" / "plan.lock",
        root / "tmp" / some / "without-a-lock",
        other / "linked" / "thesis",
        other / f"{some}.lock",
        other / some / "thesis",
    ]
    for path in users:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"the user's")
    linked = root / "tmp" / uuid.uuid4().hex
    linked.symlink_to(other / "linked")
    linked.with_name(f"{linked.name}.lock").write_bytes(b"")
    (root / "tmp" / f"{uuid.uuid4().hex}.lock").symlink_to(other / "linked" / "thesis")
    (root / "whole").mkdir()
    (root / "whole" / "tmp").symlink_to(other)  # another run, all of whose tmp/ is a link
    start(root / "tmp")
    before = files(tmp_path)
    removed = [remove_orphans(root), remove_orphans(root / "tmp"), remove_orphans(root / "whole")]
    after = files(tmp_path)
    assert removed == [[], [], []]
    assert before == after


def test_a_new_lock_that_another_launch_looks_at_is_waited_for(tmp_path, monkeypatch):
    """`remove_orphans` of another process holds it for a moment, before its own process does."""
    opened = os.open

    def opened_by_both(path: Path, *given: int) -> int:
        monkeypatch.setattr(os, "open", opened)
        own, other = (opened(path, *given) for _ in range(2))
        fcntl.flock(other, fcntl.LOCK_EX)
        threading.Timer(0.05, os.close, [other]).start()
        return own

    monkeypatch.setattr(os, "open", opened_by_both)
    with temporary_folder(tmp_path) as folder:
        assert folder.is_dir()


def test_temporary_folders_of_a_step_share_a_lock(tmp_path):
    """Each is empty and its own, and goes with its block; the lock goes with the step."""
    with shared_folder(tmp_path):
        assert not list(tmp_path.iterdir())
        for _ in range(2):
            with temporary_folder(tmp_path) as one, temporary_folder(tmp_path) as other:
                (one / "half").write_bytes(b"half")
                assert len(list(tmp_path.glob("tmp/*.lock"))) == 1
                assert not list(other.iterdir())
            assert not one.exists() and not other.exists()
        with temporary_folder(tmp_path / "another run"):
            assert len(list(tmp_path.glob("another run/tmp/*.lock"))) == 1
    assert not (tmp_path / "tmp").exists()


def test_a_folder_on_another_disk_gets_its_files(tmp_path, monkeypatch):
    """A stage's folder may be another file system than the run's: the file still appears whole."""
    from datamask.runs.files import replace_file

    real = os.replace

    def within_a_folder(source: Path, target: Path) -> None:
        if Path(source).parent != Path(target).parent:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        real(source, target)

    monkeypatch.setattr(os, "replace", within_a_folder)
    path = tmp_path / "selection" / "00001.parquet"
    with replace_file(path, root=tmp_path) as temporary:
        temporary.write_bytes(b"whole")
    assert files(tmp_path) == {path: b"whole"}
