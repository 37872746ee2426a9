"""A loopback Hub, and a small finished run to publish to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from datamask.store import Run
from tests.hub.runs import finished_run
from tests.hub.server import Hub

TOKEN = "hf_loopbackSecretToken"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A running Hub that accepts only our token; the client's own waits are cut short."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    real_sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: real_sleep(min(seconds, 0.005)))
    with Hub(tmp_path / "hub", token=TOKEN) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        yield server


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Run]:
    """Makes finished runs in folders of their own."""
    number = iter(range(100))
    return lambda *args, **options: finished_run(tmp_path / f"run{next(number)}", *args, **options)
