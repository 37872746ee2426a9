"""Progress in a pipe, and what it is made of; `test_main` has a run in a terminal."""

import logging
import re
import shlex
import shutil
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from datamask.cli.progress import shown_progress
from datamask.cli.rebuilding import print_answer
from datamask.cli.terminal import print_rows, print_text
from datamask.execution import progress as progress_module
from datamask.execution.progress import Stages, clock
from datamask.report.answer import Answer
from datamask.report.finding import Finding
from datamask.runs import in_progress
from datamask.runs.in_progress import advance, running, working
from datamask.runs.opening import open_run
from datamask.runs.records import read_record
from datamask.runs.stages import stages_of


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


def test_a_pipe_gets_lines(info, capsys, monkeypatch):
    """The stage from its start, units, documents within a unit, rate and time left."""
    # A clock that stands still, however long this takes.
    now = time.monotonic() + 0.5
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: now))
    with shown_progress(0.05) as stages:
        stages.advance("embeddings", 0, 4)
        with working("embeddings", "00000"):
            first = until(capsys, "embeddings")
            advance(1500, 3000)
            last = until(capsys, "documents")
        stages.advance("embeddings", 1, 4)
        time.sleep(0.2)
        assert capsys.readouterr().err.splitlines()[1:] == []
    assert first == "embeddings: 0 of 4 done, 0:00 spent"
    shape = r"embeddings: 0 of 4 done, 1,500 of 3,000 documents, [\d,]+/s, 0:0\d left"
    assert re.fullmatch(shape, last)
    assert not running()


def test_a_limit_is_no_reason_for_a_time_left(monkeypatch):
    """Steps that may not be needed give no time; finished units do."""
    now = time.monotonic()
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(in_progress, "time", SimpleNamespace(monotonic=lambda: now))
    stages = Stages(lambda line: None)
    stages.advance("selection", 0, 4)
    with working("selection", "00000"):
        now += 10
        advance(2, 1000, "steps at most", is_bound=True)
        [shown] = stages.shown()
        assert shown.left is None and shown.share is None and not stages.whole([shown])
    stages.advance("selection", 1, 4)
    with working("selection", "00001"):
        [shown] = stages.shown()
    assert shown.left == pytest.approx(30) and shown.share == 0.25


def test_units_that_take_longer_than_finished_ones_leave_the_time_unknown(monkeypatch):
    """Four arms are there at once and the fifth selects anew: no time left that grows with it.

    If it says how far it is, it goes on at its own pace.
    """
    now = time.monotonic()
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(in_progress, "time", SimpleNamespace(monotonic=lambda: now))
    stages = Stages(lambda line: None)
    stages.advance("arms", 0, 5)
    for arm in range(4):
        with working("arms", f"{arm}"):
            now += 1
        stages.advance("arms", arm + 1, 5)
    with working("arms", "4"):
        assert stages.shown()[0].left == pytest.approx(1)
        for _ in range(5):
            now += 100
            [shown] = stages.shown()
            assert shown.left is None and shown.text.endswith("spent")
        advance(250, 1000)
        assert stages.shown()[0].left == pytest.approx(1500)
        advance(1000, 1000)
        stages.expected["arms"] = 10_000.0
        [shown] = stages.shown()
        assert shown.left is None and "left" not in shown.text


def test_units_of_an_earlier_launch_say_nothing_of_the_pace(monkeypatch):
    """Nine of ten were done before: the last one's time is its own."""
    now = time.monotonic()
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(in_progress, "time", SimpleNamespace(monotonic=lambda: now))
    stages = Stages(lambda line: None)
    stages.advance("training", 9, 10)
    with working("training", "9"):
        now += 60
        assert stages.shown()[0].left is None
        advance(1, 10, "steps")
        assert stages.shown()[0].left == pytest.approx(540)


def test_a_stage_that_makes_all_files_at_once_has_one_time_left(monkeypatch):
    """A quarter of its shards are read in ten seconds: thirty are left, not 4,000 times as many."""
    now = time.monotonic()
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: now))
    stages = Stages(lambda line: None)
    stages.advance("quality", 0, 4000)
    now += 10
    with working("quality"):
        advance(1000, 4000, "shards")
        [shown] = stages.shown()
    assert shown.left == pytest.approx(30) and shown.share == 0.25


@pytest.mark.slow
def test_the_whole_time_follows_from_earlier_launches(finished, tmp_path, monkeypatch):
    """With another budget, the rest takes as long as before; without a record nothing is said."""
    root = Path(shutil.copytree(finished[0], tmp_path / "run"))
    run = open_run(root)
    changed = run.settings.model_copy(
        update={"selection": run.settings.selection.model_copy(update={"ratio": 0.3})}
    )
    order, now = stages_of(changed), time.monotonic()
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: now))

    def whole() -> tuple[str, list[float | None]]:
        stages = Stages()
        stages.expect(replace(run, settings=changed), workers=1)
        with working("selection", "00000"):
            return stages.whole(stages.shown()), [*stages.expected.values()]

    number = order.index("selection")
    seconds = [0.0] * number
    for stage in order[number:]:
        records = [read_record(run, stage, unit) for unit in range(run.num_units(stage))]
        seconds.append(sum(record.seconds or 0 for record in records if record))
    text, expected = whole()
    place = f"stage {number + 1} of {len(order)}, 0:00 spent"
    assert expected == pytest.approx(seconds)
    assert re.fullmatch(rf"{place} of about \d+:\d\d", text)
    run.record_path("documents").unlink()
    assert whole()[0] == place


def test_a_terminal_gets_no_broken_words(capsys, monkeypatch):
    """Paragraphs end lines between words, and of a table that is too wide each row is one."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    text = "a paragraph of several words, with λ = 0 and file-names, for a terminal of 40 columns"
    print_text(text)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 40 and " ".join(" ".join(lines).split()) == text
    print_rows(("name", "first value"), [("x" * 35, 1), ("y" * 35, 22)], "table")
    words = capsys.readouterr().out.split()
    assert words == ["name", "x" * 35, "first", "value", "1", *["name", "y" * 35], *words[-3:]]
    print_rows(("name", "value"), [("x", 1)], "table")
    assert capsys.readouterr().out.splitlines() == ["name  value", "x         1"]


def test_the_commands_that_follow_can_be_copied(capsys):
    """A shell reads the folder as one word, and a setting with the letters RUN stays as it is."""
    finding = Finding("warning", "score", "", "", "datamask rebuild RUN --set a=/data/RUN")
    print_answer(Answer("", [finding]), "my runs/it's #1")
    command = capsys.readouterr().out.partition("next: ")[2]
    assert shlex.split(command)[2:] == ["my runs/it's #1", "--set", "a=/data/RUN"]


def test_only_warnings_means_no_progress(info, capsys):
    """With -q nothing is shown."""
    logging.getLogger().setLevel(logging.WARNING)
    with shown_progress(0.01), working("report"):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""


def test_each_thread_reports_its_own_unit():
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


def test_logs_of_units_get_what_the_display_leaves_out(info, monkeypatch, caplog):
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
