"""Shards put together: what a task is given, and what it does when some of them fail."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datamask.config.compute import Compute
from datamask.errors import HubUnavailableError, InputError, SettingsError
from datamask.execution import shard_batches
from datamask.execution.pipeline import run_stage
from datamask.execution.shard_batches import BatchError, batches, put_together, run_batch
from datamask.runs.run import Run

ROWS = st.lists(st.integers(0, 50), max_size=60)


@given(ROWS, st.integers(0, 200), st.one_of(st.none(), st.integers(1, 9)))
def test_batches_are_the_shards_in_order(rows: list[int], least: int, most: int | None) -> None:
    """Nothing is lost or twice; a batch is as short as it may be, and never longer than asked."""
    cut = put_together(rows, least, most)
    assert [position for batch in cut for position in batch] == list(range(len(rows)))
    for batch in cut:
        assert len(batch) >= 1
        assert most is None or len(batch) <= most
        assert len(batch) == 1 or sum(rows[p] for p in batch[:-1]) < least
    for batch in cut[:-1]:
        assert sum(rows[p] for p in batch) >= least or len(batch) == most


def a_run(rows: list[int]) -> Run:
    """As much of a run as the cut looks at."""
    found: Any = SimpleNamespace(shard_rows=lambda shard: rows[shard])
    return found  # type: ignore[no-any-return]


@given(st.integers(1, 400), st.integers(1, 64), st.integers(1, 3_000_000))
def test_no_worker_runs_out_of_tasks(num_shards: int, slots: int, rows: int) -> None:
    """Tasks of a million documents where there are many, else several for each worker."""
    run = a_run([rows] * num_shards)
    cut = batches(run, "masks", list(range(num_shards)), Compute(), slots)
    held = [len(batch) * rows for batch in cut[:-1]]
    assert all(number < 1_000_000 + rows for number in held)
    enough = num_shards * rows >= 1_000_000 * 16 * slots
    if enough:
        assert all(number >= 1_000_000 for number in held)
    else:
        assert len(cut) >= min(num_shards, 8 * slots)


def test_twenty_thousand_small_shards_are_few_tasks() -> None:
    """Of 5,000 documents each: what a server records in a second or two for each stage."""
    shards = list(range(20_000))
    run = a_run([5_000] * len(shards))
    for stage, most in (("scores", 200), ("embeddings", 600), ("masks", 200)):
        assert len(batches(run, stage, shards, Compute(), 4)) <= most
    assert len(batches(run, "masks", shards, Compute(shards_per_task=7), 4)) == 2858
    assert batches(run, "masks", [4, 9, 17], Compute(shards_per_task=2), 1) == [[4, 9], [17]]


def test_a_bad_shard_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are tried; each failure is kept with its reason, and crosses processes."""
    tried = []

    def work(run: Run, stage: str, shard: int, compute: Compute, *, force: bool) -> None:
        tried.append(shard)
        if shard == 2:
            raise InputError("bad row", path=Path("x.parquet"), shard=2)
        if shard == 3:
            raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr(shard_batches, "run_unit", work)
    with pytest.raises(BatchError) as caught:
        run_batch(a_run([]), "masks", [1, 2, 3, 4], Compute())
    assert tried == [1, 2, 3, 4]
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.failures == {
        2: "file x.parquet, shard 00002: bad row",
        3: "ZeroDivisionError: by zero",
    }
    assert str(again) == str(caught.value)


def test_a_batch_is_tried_again_only_for_what_may_heal(monkeypatch: pytest.MonkeyPatch) -> None:
    """One transient failure among the others is enough, none is not."""
    from prefect.states import Failed

    from tasks.retrying import may_heal

    def caught(problems: dict[int, Exception]) -> BatchError:
        def work(run: Run, stage: str, shard: int, compute: Compute, *, force: bool) -> None:
            raise problems[shard]

        monkeypatch.setattr(shard_batches, "run_unit", work)
        with pytest.raises(BatchError) as found:
            run_batch(a_run([]), "masks", problems, Compute())
        return found.value

    healing = caught({1: InputError("bad"), 2: HubUnavailableError("503"), 3: InputError("bad")})
    assert may_heal(None, None, Failed(data=healing))
    assert not may_heal(None, None, Failed(data=caught({1: InputError("bad")})))


def test_ray_is_no_engine_of_the_command_line() -> None:
    """It is refused, not left aside: nobody should wait for a cluster that does nothing."""
    with pytest.raises(SettingsError, match="ray is an engine of the Prefect flows"):
        run_stage(a_run([]), "masks", Compute(engine="ray"))
