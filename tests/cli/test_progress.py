"""Progress in a pipe, and what it is made of; `test_main` has a run in a terminal."""

from __future__ import annotations

import logging
import re
import threading
import time
from types import SimpleNamespace

import pytest

from datamask.cli import progress as progress_module
from datamask.cli.progress import clock, shown_progress
from datamask.runs import in_progress
from datamask.runs.in_progress import advance, running, working


@pytest.fixture
def info() -> None:
    """Logs as the command sets them."""
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.INFO)
    yield
    root.setLevel(before)


def until(capsys: pytest.CaptureFixture[str], words: str) -> str:
    """The first line with these words, once it is there."""
    shown = ""
    while True:
        shown += capsys.readouterr().err
        for line in shown.splitlines(keepends=True):
            if words in line and line.endswith("\n"):
                return line.rstrip("\n")
        time.sleep(0.01)


def test_a_pipe_gets_lines(
    info: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage from its start, units, documents within a unit, rate and time left."""
    # A clock that stands still, however long this takes.
    now = time.monotonic() + 0.5
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: now))
    with shown_progress(0.05) as progress:
        progress("embeddings", 0, 4)
        with working("embeddings", "00000"):
            first = until(capsys, "embeddings")
            advance(1500, 3000)
            last = until(capsys, "documents")
        progress("embeddings", 1, 4)
        time.sleep(0.2)
        assert capsys.readouterr().err.splitlines()[1:] == []
    assert first == "embeddings: 0 of 4 done, 0:00"
    shape = (
        r"embeddings: 0 of 4 done, 1,500 of 3,000 documents, [\d,]+ per second, 0:00, 0:0\d left"
    )
    assert re.fullmatch(shape, last)
    assert not running()


def test_only_warnings_means_no_progress(info: None, capsys: pytest.CaptureFixture[str]) -> None:
    """With -q nothing is shown."""
    logging.getLogger().setLevel(logging.WARNING)
    with shown_progress(0.01), working("report"):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""


def test_each_thread_reports_its_own_unit() -> None:
    """Two shards at once do not overwrite each other; outside of a unit nothing is reported."""
    barrier = threading.Barrier(3)

    def work(shard: int) -> None:
        with working("embeddings", f"{shard:05d}"):
            advance(shard, 10)
            barrier.wait()
            barrier.wait()

    threads = [threading.Thread(target=work, args=(shard,)) for shard in (1, 2)]
    for thread in threads:
        thread.start()
    barrier.wait()
    advance(7, 10)
    assert {work.label: work.done for work in running()} == {"00001": 1, "00002": 2}
    barrier.wait()
    for thread in threads:
        thread.join()
    assert clock(7) == "0:07" and clock(3723) == "1:02:03"


def test_logs_of_units_get_what_the_display_leaves_out(
    info: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The library's own handlers see each line, those of the terminal do not."""
    monkeypatch.setattr(in_progress, "SECONDS_BETWEEN_LINES", 0)
    lines: list[str] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    library = logging.getLogger("datamask")
    library.addHandler(handler)
    try:
        with shown_progress(60), working("round/02", "00007"):
            advance(3, 9, "steps", ", 1.50 bits")
    finally:
        library.removeHandler(handler)
    assert lines == ["round/02: 00007: 3 of 9 steps, 1.50 bits"]
    assert not [record for record in caplog.records if record.name == "datamask.progress"]
