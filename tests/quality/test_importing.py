"""Importing: facts of documents, the policies for missing scores, and the moments of shards."""

import pytest

from datamask.errors import InputError, RunError
from datamask.quality.combining import combine
from datamask.quality.importing import import_scores
from tests.quality.runs import COMPUTE, column, make_run, score


def test_policy_error_names_the_first_row(tmp_path, monkeypatch):
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


def test_policy_error_holds_for_scores_imported_under_another_policy(tmp_path, monkeypatch):
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
