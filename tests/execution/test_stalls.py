"""A unit that is stuck is given up; one that goes on, waits for a lock or computes is not."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from datamask.errors import is_transient
from datamask.runs import stalls
from datamask.runs.in_progress import advance
from datamask.runs.stalls import StalledError, unless_stuck

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
