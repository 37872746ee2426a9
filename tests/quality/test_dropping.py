"""Documents of all shards are compared, dropped and counted; the worst are pruned."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datamask.config.compute import Compute
from datamask.config.loading import parse_settings
from datamask.planning.plan import plan_run
from datamask.quality.dropping import quantiles
from tests.conftest import nightly
from tests.quality.runs import column, make_run, score


@given(st.lists(st.integers(0, 30), min_size=1, max_size=80))
def test_deciles_are_those_of_the_documents_in_order(values):
    """The value at each tenth of the documents, rounded up."""
    counts = [(value, values.count(value)) for value in sorted(set(values))]
    ordered = sorted(values)
    expected = [ordered[max(1, -(-tenth * len(values) // 10)) - 1] for tenth in range(1, 10)]
    assert quantiles(counts, 10) == expected


def corpus() -> dict[str, Any]:
    """Texts that occur up to four times, some of them empty, with two scores and groups."""
    generator = random.Random(8)
    texts = [f"text number {generator.randrange(90)}" for _ in range(200)]
    return {
        "text": [text if generator.random() > 0.03 else " " for text in texts],
        "grade": [None if generator.random() < 0.1 else generator.gauss(0, 1) for _ in texts],
        "other": [float(generator.randrange(4)) for _ in texts],
        "url": [f"https://{generator.choice('abcde')}.org/x" for _ in texts],
    }


@pytest.mark.parametrize("hold_out", [0.1, *nightly(0.0)])
def test_neither_shards_nor_threads_change_anything(tmp_path, hold_out):
    """Copies, ranks, groups and pruned documents are the same, with other threads bit for bit."""
    scores = [
        column("rank", missing="drop"),
        {**column("z-score", normalise_within="domain"), "name": "other", "column": "other"},
    ]
    results = []
    for number, (threads, rows) in enumerate(((1, 33), (4, 33), (2, 200))):
        folder = tmp_path / str(number)
        folder.mkdir()
        run = make_run(folder, corpus(), rows=rows, prune_fraction=0.3, scores=scores)
        if hold_out:
            given = run.settings.model_dump(mode="json", exclude={"evaluation"})
            given["evaluation"] = {"hold_out": hold_out}
            run = plan_run(folder / "run", parse_settings(given))
        documents = score(run, Compute(duckdb_memory="500MB", workers=threads))
        results.append((documents, run.receipt("quality", 0).metrics))
        reasons = {row["dropped"] for row in documents}
        assert reasons >= {"empty", "missing-score", "duplicate", "pruned"}
        assert ("held_out" in reasons) == bool(hold_out)
    assert results[0] == results[1]
    for row, other in zip(results[0][0], results[2][0], strict=True):
        assert row["dropped"] == other["dropped"]
        assert (row["quality"] or 0) == pytest.approx(other["quality"] or 0, rel=1e-12)


def test_receipts_count_what_is_kept(tmp_path):
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
