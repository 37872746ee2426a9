"""Documents that are empty, copies, without a score or the worst are dropped and counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from datamask.errors import SettingsError
from tests.quality.runs import column, make_run, score

pytestmark = pytest.mark.usefixtures("roughly")


def test_receipts_count_what_is_kept(tmp_path: Path) -> None:
    """Kept before, kept and in total add up over shards, and drops are counted by reason."""
    values = [1.0, float("nan"), 3.0, None, float("inf"), 6.0, 7.0, 8.0]
    run = make_run(tmp_path, {"grade": values}, prune_fraction=0.2, scores=[column(missing="drop")])
    rows = score(run)
    reasons = [row["dropped"] for row in rows]
    missing = "missing-score"
    assert reasons == ["pruned", missing, None, missing, missing, None, None, None]
    assert [row["quality"] for row in rows][:4] == [1.0, None, 3.0, None]
    metrics = [run.receipt("quality", shard).metrics for shard in (0, 1)]
    assert [(f["kept_before"], f["kept"], f["kept_total"]) for f in metrics] == [
        (0, 1, 4),
        (1, 3, 4),
    ]
    others = ("empty", "too_long", "held_out", "duplicate", "contaminated", "near_duplicate")
    none = dict.fromkeys(others, 0)
    assert metrics[0]["dropped"] == {**none, missing: 2, "pruned": 1}
    assert [f["missing"] for f in metrics] == [{"grade": 2}, {"grade": 1}]


def test_nothing_left_to_select_fails_before_embedding(tmp_path: Path) -> None:
    """Dropping more than the budget allows is one line with the reasons."""
    columns = {"grade": [1.0, None, None, 2.0]}
    run = make_run(tmp_path, columns, ratio=0.75, prune_fraction=0, scores=[column(missing="drop")])
    with pytest.raises(SettingsError, match=r"3 documents are to be kept.* 2 missing-score"):
        score(run)
