"""The record of each unit of work: attempts, seconds, and a log that is only its own."""

import contextvars
import json
import logging
import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from datamask.config.compute import Compute
from datamask.embedding.speed import embedding_speed
from datamask.errors import DatamaskError
from datamask.execution.attempts import run_unit
from datamask.report.page import write_report
from datamask.runs.in_progress import note
from datamask.runs.records import read_record, recorded
from tests.finished import corpus, finish, settings

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")


def test_failed_attempts_are_counted_until_one_succeeds(planned):
    """Two failures and a success are three attempts; their reasons are in the log."""
    source = Path(planned.shard_pieces[1][0].path)
    for number in (1, 2):
        away = source.rename(source.with_suffix(".away"))
        with pytest.raises(DatamaskError):
            run_unit(planned, "scores", 1, Compute())
        away.rename(source)
        record = read_record(planned, "scores", 1)
        assert record is not None and (record.attempts, record.seconds) == (number, None)
    run_unit(planned, "scores", 1, Compute())
    record = read_record(planned, "scores", 1)
    assert record is not None and record.attempts == 3 and record.seconds is not None
    log = record.log
    assert not planned.log_path("scores", 1).exists()
    assert [f"attempt {number} begins" in log for number in (1, 2, 3)] == [True] * 3
    assert log.count(" ERROR ") == 2 and "Traceback" in log and log.rstrip().endswith(" s")
    run_unit(planned, "scores", 1, Compute(), force=True)
    again = read_record(planned, "scores", 1)
    assert again is not None and again.attempts == 1
    assert read_record(planned, "scores", 0) is None


def test_another_units_lines_stay_out(planned):
    """Two threads at once: each log has its own thread's lines."""
    logger = logging.getLogger("datamask.test")
    logging.getLogger("datamask").setLevel("INFO")
    meeting = threading.Barrier(2)

    def work(unit: int) -> None:
        with recorded(planned, "selection", unit):
            meeting.wait(60)
            logger.info("from unit %d", unit)
            meeting.wait(60)

    handlers = list(logging.getLogger("datamask").handlers)
    threads = [threading.Thread(target=work, args=(unit,)) for unit in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for unit in (0, 1):
        record = read_record(planned, "selection", unit)
        log = record.log if record else ""
        assert f"from unit {unit}" in log and f"from unit {1 - unit}" not in log
    assert logging.getLogger("datamask").handlers == handlers


def test_a_record_of_other_settings_does_not_count(planned):
    """The record of a stale output, or a damaged one, is none."""
    with recorded(planned, "selection", 0):
        pass
    path = planned.record_path("selection", 0)
    assert json.loads(path.read_text())["work"]["fingerprint"] == planned.fingerprint(
        "selection", 0
    )
    selection = planned.settings.selection.model_copy(update={"ratio": 0.5})
    chosen = planned.settings.model_copy(update={"selection": selection})
    other = replace(planned, settings=chosen)
    assert read_record(other, "selection", 0) is None
    path.write_text("{")
    assert read_record(planned, "selection", 0) is None


def test_the_report_tells_retries_and_seconds(tmp_path):
    """Shard 1 was tried twice; its seconds are those of all its records."""
    run = finish(tmp_path / "run", settings(corpus(tmp_path / "source")), "composition")
    path = run.record_path("selection", 1)
    record = json.loads(path.read_text())
    record["work"] |= {"attempts": 2, "seconds": 4.25}
    path.write_text(json.dumps(record))
    write_report(run, Compute())
    page = run.path("report").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith("<tr><td>00001</td>"))
    seconds, retries = re.findall("<td>([^<]*)</td>", row)[-2:]
    assert 4.25 < float(seconds) < 60 and retries == "1"


def test_notes_add_up_and_belong_to_their_unit(planned):
    """Of the attempt that succeeded; also from a thread in the unit's context; else nowhere."""
    note(documents=1)
    with pytest.raises(ValueError), recorded(planned, "selection", 0):
        note(documents=100)
        raise ValueError
    with recorded(planned, "selection", 0):
        note(documents=2, seconds=0.5)
        here = contextvars.copy_context()
        thread = threading.Thread(target=here.run, args=(lambda: note(documents=3),))
        thread.start()
        thread.join()
    record = read_record(planned, "selection", 0)
    assert record is not None and record.metrics == {"documents": 5, "seconds": 0.5}


@pytest.mark.slow
def test_the_report_tells_how_fast_texts_were_embedded(tmp_path):
    """Sums over shards; a shard without a record counts for nothing; padding where known."""
    run = finish(tmp_path / "run", settings(corpus(tmp_path / "source")), "composition")
    for shard in range(run.num_shards):
        path = run.record_path("embeddings", shard)
        record = json.loads(path.read_text())
        assert record["work"]["metrics"]["documents"] == run.receipt("embeddings", shard).rows
        metrics = {"documents": 30, "tokens": 900, "padded_tokens": 1000, "seconds": 2 + shard}
        cut = {"whole_tokens": 1200, "cut": 6, "tokens_at_64": 450, "tokens_at_512": 1080}
        record["work"]["metrics"] = metrics | cut | {"waited_seconds": 0.5}
        path.write_text(json.dumps(record))
    run.record_path("embeddings", 2).unlink()
    speed = embedding_speed(run)
    assert speed is not None
    assert speed.documents_per_second == pytest.approx(60 / 5)
    assert speed.padding == pytest.approx(0.1)
    assert (speed.cut, speed.lost) == pytest.approx((0.2, 0.25))
    assert speed.seconds_at == pytest.approx({64: 2.5, 128: 0, 256: 0, 512: 6})
    write_report(run, Compute())
    page = run.path("report").read_text(encoding="utf-8")
    for number in ("12", "20.00%", "10.00%", "25.00%", "2.5 s at 64"):
        assert number in page
