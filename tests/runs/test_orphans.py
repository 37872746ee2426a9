"""What killed processes leave is removed, and nothing of those that live."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from datamask.execution.pipeline import rebuild
from datamask.runs.opening import create_run, run_storage
from datamask.runs.orphans import remove_orphans
from tests import finished

pytestmark = pytest.mark.usefixtures("undrawn")

WORK = """
import sys, time
from datamask.runs import locks
from datamask.runs.checkpoints import Checkpoints
from datamask.config.compute import Compute
from datamask.storage.duckdb_scratch import temporary_duckdb
from datamask.runs.opening import open_run
from datamask.runs.files import replace_file
run, stage, unit = open_run(sys.argv[1]), sys.argv[2], int(sys.argv[3])
paths = [run.local_path(stage, max(unit, 0)), run.work_record_path(stage, max(unit, 0))]
paths.append(run.root / "checksums" / stage / f"{max(unit, 0):05d}.parquet.sha256")
paths.append(Checkpoints(run, stage, max(unit, 0), "how", 0).folder / "learner.npz")
name = f"{stage}-{unit:05d}" if unit >= 0 else stage
with locks.working(run.storage), run.storage.lock(name):
    entered = [temporary_duckdb(run.root, Compute())]
    entered[-1].__enter__()
    for path in paths:
        entered.append(replace_file(path))
        made = entered[-1].__enter__()
        made.write_bytes(b"half")
        made.with_name(f"{made.name}.wal").write_bytes(b"a database's log")
    print("working", flush=True)
    time.sleep(120)
"""
HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("working", flush=True)
time.sleep(120)
"""
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes that say when they work, and ends them after the test."""
    started = []

    def begin(program: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", program, *map(str, arguments)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout is not None
        assert started[-1].stdout.readline() == "working\n"
        return started[-1]

    yield begin
    for process in started:
        if process.poll() is None:
            kill(process)


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL, and wait until it is dead."""
    process.kill()
    process.communicate()


def temporary(root: Path) -> set[Path]:
    """Every hidden file and folder of a run: finished ones have other names."""
    return set(root.rglob(".*"))


def test_a_launch_removes_what_killed_processes_left(tmp_path: Path, start: Start) -> None:
    """A shard's and the whole run's, next to outputs and records, but nothing of a living one."""
    source = finished.corpus(tmp_path / "source")
    root = rebuild(tmp_path / "run", finished.settings(source)).root
    assert not temporary(root)
    first, second = start(WORK, root, "embeddings", 1), start(WORK, root, "selection", 2)
    both = temporary(root)
    assert len(both) == 18
    remove_orphans(root)
    assert temporary(root) == both
    kill(first)
    (root / "subset" / "train-00000-of-00002.parquet").unlink()
    rebuild(root)  # works while the second does
    left = temporary(root)
    # DuckDB's folders may be of any process that lives.
    folders = {path for path in left if path.name.startswith(".duckdb-")}
    assert (len(folders), len(left)) == (2, 10)
    assert all("00002" in str(path) for path in left - folders)
    kill(second)
    third = start(WORK, root, "quality", -1)
    before = temporary(root)
    assert any(path.name.startswith(".duckdb-") for path in before)
    assert not remove_orphans(root)  # a stage that looks at all shards may own any of them
    kill(third)
    rebuild(root)
    assert not temporary(root)


def test_a_unit_with_a_name_keeps_its_files(tmp_path: Path, start: Start) -> None:
    """A file of a trained model has no number; nothing is removed while one is being written."""
    chosen = finished.settings(tmp_path, evaluation={"arms": ["ours", "random"]})
    run = create_run(tmp_path / "run", chosen, {})
    trained = run.root / "evaluation" / "training"
    trained.mkdir(parents=True)
    (run.root / "locks").mkdir()
    (trained / ".ours-seed0-rate0.01.parquet.0a.tmp").write_bytes(b"half")
    holder = start(HOLD, run.root / "locks" / f"{run.lock_of('training', 0)}.lock")
    assert not remove_orphans(run.root)
    kill(holder)
    assert len(remove_orphans(run.root)) == 1


def test_a_cache_is_cleaned_like_a_run(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run at a URL has its temporary files and its machine's locks in the cache."""
    monkeypatch.setenv("DATAMASK_CACHE", str(tmp_path))
    url = "s3://nowhere/run"
    root = run_storage(url).root
    orphan, owned = (root / "embeddings" / f".0000{n}.parquet.0a.tmp" for n in (1, 2))
    (root / "locks").mkdir()
    orphan.parent.mkdir()
    orphan.write_bytes(b"half")
    owned.write_bytes(b"half")
    holder = start(HOLD, root / "locks" / "embeddings-00002.lock")
    assert remove_orphans(root) == [orphan]
    assert owned.exists()
    kill(holder)
    assert remove_orphans(root) == [owned]
