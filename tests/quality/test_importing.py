"""Importing: facts of documents, the policies for missing scores, and the moments of shards."""

from __future__ import annotations

import math
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datamask.errors import InputError, RunError
from datamask.quality.combining import combine
from datamask.quality.importing import import_scores, moments
from datamask.quality.moments import ScoreMoments
from tests.quality.runs import COMPUTE, column, make_run, score


def test_policy_error_names_the_first_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A NaN that planning missed stops the shard with file, row within it, column, count."""
    values = [1.0] * 6 + [float("nan"), None]
    monkeypatch.setattr("datamask.planning.plan.check_rows", lambda *_: ([], []))
    run = make_run(tmp_path, {"grade": values}, scores=[column()])
    import_scores(run, 0, COMPUTE)
    with pytest.raises(InputError, match=r"a\.parquet, shard 00001, row 6, column grade.* in 2 "):
        import_scores(run, 1, COMPUTE)
    assert run.state("scores", 0) == "done"
    with pytest.raises(RunError, match="run stage `scores` first"):
        combine(run, COMPUTE)


def test_policy_error_holds_for_scores_imported_under_another_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changing the policy to error after importing is noticed when planning and combining."""
    values = [1.0, None, 3.0]
    score(make_run(tmp_path, {"grade": values}, prune_fraction=0, scores=[column(missing="drop")]))
    with pytest.raises(InputError, match=r"a\.parquet, row 1, column grade.* in 1 documents"):
        make_run(tmp_path, {"grade": values}, prune_fraction=0, scores=[column()])
    monkeypatch.setattr("datamask.planning.plan.check_rows", lambda *_: ([], []))
    run = make_run(tmp_path, {"grade": values}, prune_fraction=0, scores=[column()])
    assert run.state("scores", 0) == "done"
    with pytest.raises(InputError, match=r"shard 00000, column grade.* in 1 documents"):
        combine(run, COMPUTE)


@given(st.lists(st.lists(st.floats(-1e6, 1e6), max_size=8), min_size=1, max_size=6))
@settings(max_examples=50, deadline=None)
def test_merged_moments_are_those_of_everything(shards: list[list[float]]) -> None:
    """Moments merged shard by shard equal those computed at once."""
    merged = ScoreMoments()
    for shard in shards:
        metrics = moments(pa.array(shard, pa.float64()))
        if metrics["count"]:
            keys = ("count", "min", "max", "mean", "m2")
            merged = merged.merge(ScoreMoments(*(metrics[key] for key in keys)))
    values = [value for shard in shards for value in shard]
    assert merged.count == len(values)
    if values:
        mean = math.fsum(values) / len(values)
        assert merged.mean == pytest.approx(mean, abs=1e-6)
        expected = math.fsum((value - mean) ** 2 for value in values)
        assert merged.m2 == pytest.approx(expected, rel=1e-9, abs=1e-3)
