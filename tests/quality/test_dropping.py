"""Documents that are empty, copies, without a score or the worst are dropped and counted."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.errors import InputError, SettingsError
from tests.finished import corpus, finish, settings
from tests.quality.runs import column, make_run, score

pytestmark = pytest.mark.usefixtures("roughly")


@pytest.mark.parametrize("prune_fraction", [0.0, 0.4, 0.55])
def test_prune_is_exact_and_breaks_ties_by_id(tmp_path: Path, prune_fraction: float) -> None:
    """Exactly floor(prune x candidates) of the worst by (quality, id) are pruned."""
    values = [1, 1, 1, 1, 5, 1, 7, 1, 9, 1, 1]
    text = [f"words {row}" for row in range(10)] + [" "]
    columns = {"grade": values, "text": text}
    rows = score(make_run(tmp_path, columns, prune_fraction=prune_fraction, scores=[column()]))
    assert rows[10]["dropped"] == "empty"
    order = sorted(rows[:10], key=lambda row: (row["quality"], row["id"]))
    number = {0.0: 0, 0.4: 4, 0.55: 5}[prune_fraction]
    assert [row["dropped"] for row in order] == ["pruned"] * number + [None] * (10 - number)


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


def test_a_text_that_occurs_in_several_shards_is_kept_once(tmp_path: Path) -> None:
    """Copies in any shard are dropped, the first stays; `keep` keeps them; blanks are no copies."""
    folder = corpus(tmp_path / "source")
    table = pq.read_table(folder / "3.parquet")
    copied = pq.read_table(folder / "0.parquet")["text"].to_pylist()[:12]
    texts = copied + table["text"].to_pylist()[12:]
    place = table.schema.get_field_index("text")
    pq.write_table(table.set_column(place, "text", pa.array(texts)), folder / "3.parquet")
    run = finish(tmp_path / "run", settings(folder), "quality")
    rows = [
        row
        for shard in range(run.num_shards)
        for row in pq.read_table(run.path("quality", shard)).to_pylist()
    ]
    dropped = {row["id"] for row in rows if row["dropped"] == "duplicate"}
    assert dropped == {f"3-{row:02d}" for row in range(12)}
    counts = [run.receipt("quality", shard).metrics["dropped"] for shard in range(run.num_shards)]
    assert sum(found["duplicate"] for found in counts) == 12
    # Of the 107 that are left and have text, a fifth is pruned.
    assert run.receipt("quality", 0).metrics["kept_total"] == 107 - 21
    keeping = settings(folder, quality={"duplicates": "keep"})
    kept_run = finish(tmp_path / "keep", keeping, "quality")
    assert kept_run.receipt("quality", 0).metrics["kept_total"] == 119 - 23


def test_a_copy_without_a_score_does_not_drop_the_other_copies(tmp_path: Path) -> None:
    """The first of the copies that can be selected is kept."""
    folder = corpus(tmp_path / "source")
    table = pq.read_table(folder / "0.parquet")
    texts, scores = table["text"].to_pylist(), table["edu"].to_pylist()
    texts[5], scores[2] = texts[2], None
    for name, values in (("text", texts), ("edu", scores)):
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, pa.array(values))
    pq.write_table(table, folder / "0.parquet")
    edu = {"name": "edu", "kind": "column", "column": "edu", "missing": "drop"}
    chosen = settings(folder, quality={"scores": [edu], "prune_fraction": 0.0})
    run = finish(tmp_path / "run", chosen, "quality")
    rows = {row["id"]: row["dropped"] for row in pq.read_table(run.path("quality", 0)).to_pylist()}
    assert (rows["0-02"], rows["0-05"]) == ("missing-score", None)


def test_a_shard_without_any_text_is_empty_not_an_error(tmp_path: Path) -> None:
    """Its documents are all dropped and counted; the other shards carry the budget."""
    run = make_run(tmp_path, {"text": [" ", None, "", "\n", "some text", "more"]}, prune_fraction=0)
    assert [row["dropped"] for row in score(run)] == ["empty"] * 4 + [None] * 2
    assert [run.receipt("quality", shard).metrics["kept"] for shard in (0, 1)] == [0, 2]


def test_nothing_left_to_select_fails_before_embedding(tmp_path: Path) -> None:
    """Dropping more than the budget allows is one line with the reasons."""
    columns = {"grade": [1.0, None, None, 2.0]}
    run = make_run(tmp_path, columns, ratio=0.75, prune_fraction=0, scores=[column(missing="drop")])
    with pytest.raises(SettingsError, match=r"3 documents are to be kept.* 2 missing-score"):
        score(run)


def test_nothing_left_at_all_is_an_input_error(tmp_path: Path) -> None:
    """A corpus of white space says so, with the counts."""
    with pytest.raises(InputError, match=r"no document is left of 2 \(2 empty"):
        score(make_run(tmp_path, {"text": [" ", None]}))
