"""Locks between real processes: they exclude, they wait, and death releases them."""

import contextlib
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from datamask.config.compute import Compute
from datamask.errors import RunError, StorageError
from datamask.execution import devices
from datamask.runs import locks
from datamask.runs.opening import run_storage
from datamask.storage import leases
from datamask.storage.object_store import ObjectStore
from tests.killed import kill

HOLD = """
import sys, time
from datamask.runs import locks
from datamask.runs.opening import run_storage
with getattr(locks, sys.argv[2])(run_storage(sys.argv[1]), *sys.argv[3:]):
    print("held", flush=True)
    time.sleep(60)
"""


def holder(root: Path, *what: str) -> subprocess.Popen[str]:
    """Another process that holds a lock until it is killed."""
    command = [sys.executable, "-c", HOLD, str(root), *what]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_settings_are_not_changed_under_somebody_who_works(tmp_path):
    """The message names the process; once it is dead, the lock is free, and no file is left."""
    other = holder(tmp_path, "working")
    with locks.working(run_storage(tmp_path)):
        pass  # several may work
    with (
        pytest.raises(RunError, match=f"process {other.pid} on .* is working in it"),
        locks.alone(run_storage(tmp_path)),
    ):
        pass
    kill(other)
    with locks.alone(run_storage(tmp_path)):
        assert list((tmp_path / "locks").iterdir())
    assert not list((tmp_path / "locks").iterdir())


def test_nobody_works_while_settings_are_changed(tmp_path):
    """Work waits, and goes on when the other has died."""
    other = holder(tmp_path, "alone")
    start = time.monotonic()
    threading.Timer(0.5, kill, [other]).start()
    with locks.working(run_storage(tmp_path)):
        assert time.monotonic() - start > 0.4


def test_every_task_has_a_gpu_of_its_own(tmp_path, monkeypatch):
    """Four tasks, two GPUs: both are used, and no GPU by two tasks."""
    monkeypatch.setattr(devices, "visible_gpus", lambda: ["first", "second"])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    busy: list[str] = []
    seen: set[str] = set()
    most = 0
    problems: list[str] = []
    pair = threading.Barrier(2)

    def task() -> None:
        nonlocal most
        with devices.own_device(Compute(device="cuda")) as machine:
            if machine.device in busy:
                problems.append(f"{machine.device} is taken twice")
            busy.append(machine.device)
            most = max(most, len(busy))
            seen.add(machine.device)
            pair.wait(60)
            busy.remove(machine.device)

    threads = [threading.Thread(target=task) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert (seen, most) == ({"cuda:0", "cuda:1"}, 2)


def test_lock_files_come_and_go_under_many_hands(tmp_path):
    """Each shard has one holder at a time, though the last one removes the file of the lock.

    A launch that failed removes the folder, and others lock on.
    """
    failures: list[BaseException] = []
    holders: dict[int, list[int]] = {0: [], 1: []}

    def take_and_release(unit: int) -> None:
        try:
            for _ in range(150):
                with run_storage(tmp_path).lock(f"selection-{unit % 2:05d}"):
                    holders[unit % 2].append(unit)
                    time.sleep(1e-4)
                    assert holders[unit % 2] == [unit]
                    holders[unit % 2].clear()
                with contextlib.suppress(OSError):
                    (tmp_path / "locks").rmdir()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=take_and_release, args=(unit,)) for unit in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert not list(tmp_path.glob("locks/*"))


@pytest.mark.parametrize("hold", ["working", "alone", "settings"])
def test_a_run_behind_a_dangling_link_is_refused(tmp_path, hold):
    """One line that names the lock that was wanted, and no endless loop."""
    (tmp_path / "run").symlink_to(tmp_path / "missing disk")
    with (
        pytest.raises(StorageError, match=r"run.locks.*\.lock: .*cannot be made.*its disk is"),
        getattr(locks, hold)(run_storage(tmp_path / "run")),
    ):
        pass


def test_a_lease_that_cannot_be_had_is_given_up(monkeypatch):
    """A store that says both that it is there and that it is not: one line that names it."""
    monkeypatch.setattr(leases, "SECONDS_BETWEEN_TRIES", 0)
    answers = {"replace": lambda *given: None, "find": lambda name: None}
    store = cast(ObjectStore, SimpleNamespace(url="s3://b/run", **answers))
    for shared in (None, True, False):
        with (
            pytest.raises(StorageError, match=r"s3://b/run/locks/\S+: .*not be taken"),
            leases.held(store, "x", "here", shared),
        ):
            pass
