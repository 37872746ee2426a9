"""Shards put together: what a task is given, and what it does when some of them fail."""

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datamask.config.compute import Compute
from datamask.errors import HubUnavailableError, InputError
from datamask.execution.attempts import ShardsFailedError, attempt, failures_on_record, steps
from datamask.execution.batches import batches, put_together
from datamask.planning.plan import plan_run
from datamask.runs.opening import open_run
from datamask.runs.records import forget_records, read_record
from datamask.runs.run import Run
from tests.finished import corpus, settings

ROWS = st.lists(st.integers(0, 50), max_size=60)


@given(ROWS, st.integers(0, 200))
def test_batches_are_the_shards_in_order(rows, least):
    """Nothing is lost or twice; a batch is as short as it may be."""
    cut = put_together(rows, least)
    assert [position for batch in cut for position in batch] == list(range(len(rows)))
    for batch in cut:
        assert len(batch) >= 1
        assert len(batch) == 1 or sum(rows[p] for p in batch[:-1]) < least
    for batch in cut[:-1]:
        assert sum(rows[p] for p in batch) >= least


def a_run(rows: list[int]) -> Run:
    """As much of a run as the cut looks at."""
    found: Any = SimpleNamespace(
        shard_rows=lambda shard: rows[shard], shard_of=lambda stage, unit: unit
    )
    return found  # type: ignore[no-any-return]


@given(st.integers(1, 400), st.integers(1, 64), st.integers(1, 3_000_000))
def test_no_worker_runs_out_of_tasks(num_shards, slots, rows):
    """Tasks of a million documents where there are many, else several for each worker."""
    run = a_run([rows] * num_shards)
    cut = batches(run, "selection", list(range(num_shards)), slots)
    held = [len(batch) * rows for batch in cut[:-1]]
    assert all(number < 1_000_000 + rows for number in held)
    enough = num_shards * rows >= 1_000_000 * 16 * slots
    if enough:
        assert all(number >= 1_000_000 for number in held)
    else:
        assert len(cut) >= min(num_shards, 8 * slots)


def test_twenty_thousand_small_shards_are_few_tasks():
    """Of 5,000 documents each: what a server records in a second or two for each stage."""
    shards = list(range(20_000))
    run = a_run([5_000] * len(shards))
    for stage, most in (("scores", 200), ("embeddings", 600), ("selection", 200)):
        assert len(batches(run, stage, shards, 4)) <= most


def test_a_bad_shard_stops_no_other_and_its_reason_is_on_record(planned, failing):
    """All are attempted; another process reads each reason from the folder until one succeeds."""
    problems: dict[int, Exception] = {
        0: InputError("bad row", path=Path("x.parquet"), shard=0),
        2: ZeroDivisionError("by\nzero"),
    }
    units, done = list(range(planned.num_shards)), []
    counts = failing(lambda stage, unit, number: problems.get(unit))
    with pytest.raises(ShardsFailedError) as caught:
        attempt(planned, "scores", units, Compute(), progress=lambda *of: done.append(of[1:]))
    assert counts == {0: 1, 2: 1}
    assert max(done) == (len(units) - 2, len(units))
    reasons = {0: "file x.parquet, shard 00000: bad row", 2: "ZeroDivisionError: by zero"}
    assert failures_on_record(open_run(planned.root), "scores", units, {}, force=False) == reasons
    codes = [read_record(planned, "scores", unit) for unit in (0, 2)]
    assert [record and record.failure_code for record in codes] == ["input", "bug"]
    assert all(text in str(caught.value) for text in ("00000, 00002 (", reasons[0]))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    problems.clear()
    attempt(planned, "scores", [2], Compute())
    record = read_record(planned, "scores", 2)
    assert record is not None and (record.failure, record.attempts) == ("", 2)
    assert list(failures_on_record(planned, "scores", units, {}, force=False)) == [0]


def test_a_lost_process_leaves_no_reason_of_its_own(planned):
    """Where a shard has no record of a failure, what is known of its process is the reason."""
    attempt(planned, "scores", [0], Compute())
    lost = dict.fromkeys((0, 1), "killed")
    assert failures_on_record(planned, "scores", [0, 1], lost, force=False) == {1: "killed"}
    assert failures_on_record(planned, "scores", [0, 1], lost, force=True) == {1: "killed"}
    forget_records(planned, "scores", [0])
    assert failures_on_record(planned, "scores", [0, 1], lost, force=True) == lost


def test_a_task_is_tried_again_only_for_what_may_heal(planned, failing):
    """One transient failure among the others is enough, none is not."""
    from prefect.states import Failed

    from tasks.retrying import may_heal

    def caught(problems: dict[int, Exception]) -> ShardsFailedError:
        failing(lambda stage, unit, number: problems.get(unit))
        with pytest.raises(ShardsFailedError) as found:
            attempt(planned, "scores", list(problems), Compute())
        return found.value

    healing = caught({0: InputError("bad"), 1: HubUnavailableError("503"), 2: InputError("bad")})
    assert may_heal(None, None, Failed(data=healing))
    assert not may_heal(None, None, Failed(data=caught({1: InputError("bad")})))


def test_no_shards_are_no_work_in_rounds_either(tmp_path):
    """An empty list of shards leaves only what concerns all of them."""
    chosen = settings(corpus(tmp_path / "source"), selection={"scope": "corpus", "rounds": 2})
    run = plan_run(tmp_path / "run", chosen)
    totals = [("round_total", [0]), ("round_total", [1])]
    assert list(steps(run, "round", [], force=False)) == totals
    first = ("round", [1])
    assert list(steps(run, "round", [1], force=False)) == [totals[0], first, totals[1]]
