"""A unit that is stuck is given up; one that goes on, waits for a lock or computes is not."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from datamask.errors import is_transient
from datamask.runs import stalls
from datamask.runs.in_progress import advance
from datamask.runs.stalls import StalledError, unless_stuck
from tests.finished import corpus, finish, settings

BOUND = 0.003
"""Minutes."""


@pytest.fixture
def silent() -> Iterator[tuple[str, int]]:
    """The address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()


def test_a_silent_server_does_not_hold_a_unit_for_ever(silent):
    """The error is transient, and names unit and setting."""
    connected = threading.Event()

    def work() -> None:
        with socket.create_connection(silent) as connection:
            connected.set()
            connection.recv(1)

    with pytest.raises(StalledError, match=r"scores, 00003: .*compute\.stall_minutes") as caught:
        unless_stuck(work, "scores, 00003", BOUND)
    assert connected.is_set()
    assert is_transient(caught.value)


@pytest.mark.parametrize("how", ["goes on", "computes"])
def test_work_in_progress_is_not_given_up(how, monkeypatch):
    """Five times the bound, with checkpoints or with computing alone."""
    monkeypatch.setattr(stalls, "POLL_SECONDS", 0.01)
    if how == "goes on":
        monkeypatch.setattr(stalls, "COMPUTES", 1e9)

    def work() -> None:
        end = time.monotonic() + 5 * 60 * BOUND
        while time.monotonic() < end:
            if how == "goes on":
                advance(1, 2)

    unless_stuck(work, "scores", BOUND)


def test_what_the_work_raises_is_raised():
    """Errors and interruptions of the thread are those of the caller."""
    for error in (ValueError("x"), KeyboardInterrupt()):

        def work(error: BaseException = error) -> None:
            raise error

        with pytest.raises(type(error)) as caught:
            unless_stuck(work, "scores", BOUND)
        assert caught.value is error


@pytest.mark.slow
def test_a_process_attempts_a_stuck_unit_again(tmp_path, silent):
    """A real process, whose first attempt at each shard waits: status 0, two attempts."""
    asked = settings(corpus(tmp_path / "corpus"))
    run = finish(tmp_path / "run", asked, "quality")
    done = subprocess.run(
        [sys.executable, "-c", STUCK_ONCE, str(run.root), *map(str, silent)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    records = [run.record_path("embeddings", shard) for shard in range(run.num_shards)]
    assert all('"attempts": 2' in path.read_text() for path in records)
    assert done.stderr.count("trying again") == 1


STUCK_ONCE = """
import logging, socket, sys
from datamask.config.compute import Compute
from datamask.embedding import embed
from datamask.execution.pipeline import run_stage
from datamask.runs.opening import open_run
logging.basicConfig(level="INFO")
root, host, port = sys.argv[1:]
real, seen = embed.embed_shard, set()
def stuck(run, shard, compute):
    if shard not in seen:
        seen.add(shard)
        socket.create_connection((host, int(port))).recv(1)
    return real(run, shard, compute)
embed.embed_shard = stuck
run_stage(open_run(root), "embeddings", Compute(stall_minutes=0.05, workers=8))
"""
