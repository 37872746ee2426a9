"""Scores in, quality out: importing and combining on small corpora, against plain Python."""

from __future__ import annotations

import contextlib
import json
import math
import random
import sys
import types
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datamask.config.compute import Compute
from datamask.config.inputs import Score
from datamask.config.loading import parse_settings
from datamask.errors import CorruptFileError, InputError, RunError, SettingsError, StorageError
from datamask.planning.plan import plan_run
from datamask.quality.combining import combine_scores
from datamask.quality.file_scores import join_scores
from datamask.quality.heuristic import score_text
from datamask.quality.importing import import_scores, moments
from datamask.quality.moments import ScoreMoments
from datamask.runs.run import Run
from datamask.source.score_files import read_scores
from datamask.storage.duckdb_scratch import temporary_duckdb

COMPUTE = Compute(duckdb_memory="500MB")


@pytest.fixture(autouse=True)
def _pin(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("datamask.embedding.pinning")
    module.pin_model = lambda embedding: {"embeddings:model": "pinned"}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datamask.embedding.pinning", module)


def make_run(
    tmp_path: Path, columns: dict[str, Any], *, rows: int = 4, ratio: float = 0.01, **quality: Any
) -> Run:
    """Plan a corpus of these columns, with a row group and a shard every few rows."""
    count = len(next(iter(columns.values())))
    table = {
        "id": [f"d{i:03d}" for i in range(count)],
        "text": [f"some words of text number {i}" for i in range(count)],
        **columns,
    }
    folder = tmp_path / "source"
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table(table), folder / "a.parquet", row_group_size=rows)
    data = {
        "source": {"path": str(folder)},
        "plan": {"rows_per_shard": rows},
        "quality": quality,
        "selection": {"ratio": ratio},
        "embedding": {"method": "lexical"},
    }
    return plan_run(tmp_path / "run", parse_settings(data))


def score(run: Run) -> list[dict[str, Any]]:
    """All stages up to quality; the rows of all quality files."""
    if any(one.kind == "file" for one in run.settings.scores):
        join_scores(run, COMPUTE)
    for shard in range(run.num_shards):
        import_scores(run, shard, COMPUTE)
    combine_scores(run, COMPUTE)
    return read(run, "quality")


def read(run: Run, stage: str) -> list[dict[str, Any]]:
    """The rows of all files of a stage."""
    rows: list[dict[str, Any]] = []
    for shard in range(run.num_shards):
        rows += pq.read_table(run.path(stage, shard)).to_pylist()
    return rows


def column(normalisation: str = "none", **more: Any) -> dict[str, Any]:
    """Settings of a score from the column `grade`."""
    return {
        "name": "grade",
        "kind": "column",
        "column": "grade",
        "normalisation": normalisation,
        **more,
    }


def test_facts_of_documents(tmp_path: Path) -> None:
    """Length, tokens, origin and host come out as declared, absent ones as null."""
    run = make_run(
        tmp_path,
        {
            "text": ["héllo", " \n\t\u00a0", None],
            "url": ["HTTPS://user@WWW.Example.org:8080/a?b", "no.scheme", None],
            "token_count": [3, 0, None],
            "language": ["en", "fr", None],
            "grade": [1, 2, 3],
        },
        scores=[column()],
    )
    receipt = import_scores(run, 0, COMPUTE)
    rows = read(run, "scores")
    assert [row["characters"] for row in rows] == [5, 0, 0]
    assert [row["domain"] for row in rows] == ["example.org", None, None]
    assert [row["tokens"] for row in rows] == [3, 0, None]
    assert [row["language"] for row in rows] == ["en", "fr", None]
    assert [row["dump"] for row in rows] == [None] * 3
    assert [row["row"] for row in rows] == [0, 1, 2]
    assert (receipt.metrics["characters"], receipt.metrics["tokens"]) == (5, 3)


def test_rank_is_the_share_of_smaller_values_with_ties_averaged(tmp_path: Path) -> None:
    """Ranks over the whole corpus equal a count by hand, across shards."""
    values = [3.0, 1.0, 2.0, 2.0, -0.0, 0.0, 5.0, 2.0, 9.0]
    rows = score(make_run(tmp_path, {"grade": values}, prune_fraction=0, scores=[column("rank")]))
    for row, value in zip(rows, values, strict=True):
        smaller = sum(other < value for other in values)
        equal = sum(other == value for other in values)
        positions = range(smaller, smaller + equal)
        assert row["quality"] == pytest.approx(sum(positions) / equal / len(values), abs=1e-15)


@pytest.mark.parametrize("normalisation", ["z-score", "min-max"])
def test_scales_use_the_whole_corpus(tmp_path: Path, normalisation: str) -> None:
    """Values are scaled by the mean and deviation, or extremes, of all shards together."""
    values = [1.0, 4.0, 2.5, -3.0, 10.0, 0.5]
    rows = score(
        make_run(tmp_path, {"grade": values}, prune_fraction=0, scores=[column(normalisation)])
    )
    mean = sum(values) / 6
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / 6)
    for row, value in zip(rows, values, strict=True):
        expected = (value - mean) / deviation if normalisation == "z-score" else (value + 3) / 13
        assert row["grade"] == pytest.approx(expected)


def test_weights_combine_scores(tmp_path: Path) -> None:
    """The quality is the weighted sum of the normalised scores."""
    two = [column(weight=2.0), {**column(weight=-0.5), "name": "other", "column": "other"}]
    rows = score(
        make_run(tmp_path, {"grade": [1, 2], "other": [10, 30]}, prune_fraction=0, scores=two)
    )
    assert [row["quality"] for row in rows] == [-3.0, -11.0]


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
    others = ("empty", "held_out", "duplicate", "contaminated", "near_duplicate")
    none = dict.fromkeys(others, 0)
    assert metrics[0]["dropped"] == {**none, missing: 2, "pruned": 1}
    assert [f["missing"] for f in metrics] == [{"grade": 2}, {"grade": 1}]


def test_policy_error_names_the_first_row(tmp_path: Path) -> None:
    """A NaN that came after planning stops the shard with file, row within it, column, count."""
    values = [1.0] * 6 + [float("nan"), None]
    run = make_run(tmp_path, {"grade": [1.0] * 8}, scores=[column()])
    path = tmp_path / "source" / "a.parquet"
    table = pq.read_table(path)
    pq.write_table(table.set_column(2, "grade", pa.array(values)), path, row_group_size=4)
    import_scores(run, 0, COMPUTE)
    with pytest.raises(InputError, match=r"a\.parquet, shard 00001, row 6, column grade.* in 2 "):
        import_scores(run, 1, COMPUTE)
    assert run.state("scores", 0) == "done"
    with pytest.raises(RunError, match="run stage `scores` first"):
        combine_scores(run, COMPUTE)


def test_policy_error_holds_for_scores_imported_under_another_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changing the policy to error after importing is noticed when planning and combining."""
    values = [1.0, None, 3.0]
    score(make_run(tmp_path, {"grade": values}, prune_fraction=0, scores=[column(missing="drop")]))
    with pytest.raises(InputError, match=r"a\.parquet, row 1, column grade.* in 1 documents"):
        make_run(tmp_path, {"grade": values}, prune_fraction=0, scores=[column()])
    monkeypatch.setattr("datamask.planning.plan.check_rows", lambda *_: [])
    run = make_run(tmp_path, {"grade": values}, prune_fraction=0, scores=[column()])
    assert run.state("scores", 0) == "done"
    with pytest.raises(InputError, match=r"shard 00000, column grade.* in 1 documents"):
        combine_scores(run, COMPUTE)


def test_policy_fill_uses_the_raw_value(tmp_path: Path) -> None:
    """A filled value is normalised like any other."""
    values = [0.0, None, 10.0]
    scores = [column("min-max", missing="fill", fill_value=20.0)]
    rows = score(make_run(tmp_path, {"grade": values}, prune_fraction=0, scores=scores))
    assert [row["quality"] for row in rows] == [0.0, 1.0, 0.5]


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_external_scores_are_joined_by_id(tmp_path: Path, kind: str) -> None:
    """Files in another order, with other documents and gaps, give each document its score."""
    found = {"007": 1.5, "x": 9.0, "d2": 3.0, "d0": -1.0}
    path = write_scores(tmp_path / f"scores.{kind}", found)
    external = column(missing="drop", kind="file", path=str(path), id_column="key", column="mark")
    columns = {"id": ["d0", "007", "d2", "d3"], "text": ["a b"] * 4}
    rows = score(make_run(tmp_path, columns, rows=2, prune_fraction=0, scores=[external]))
    assert [row["quality"] for row in rows] == [-1.0, 1.5, 3.0, None]


ODD_IDS = ["2020-01-01", "007", "1e5", "9223372036854775808", "-1", "true", "NULL", "1.0"]
"""Texts that look like something else."""


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_ids_are_text_whatever_they_look_like(tmp_path: Path, kind: str) -> None:
    """Dates, leading zeros, numbers above 2^63 and words of SQL find their documents."""
    for mixed in (ODD_IDS, ODD_IDS[:1], ODD_IDS[3:4]):
        found = {name: float(place) for place, name in enumerate(mixed)}
        path = write_scores(tmp_path / f"{len(mixed)}{mixed[0]}.{kind}", found)
        external = column(kind="file", path=str(path), id_column="key", column="mark")
        columns = {"id": mixed, "text": [f"a {name}" for name in mixed]}
        home = tmp_path / mixed[0] / str(len(mixed))
        home.mkdir(parents=True)
        rows = score(make_run(home, columns, ratio=1, prune_fraction=0, scores=[external]))
        assert [row["quality"] for row in rows] == [found[name] for name in mixed]


@pytest.mark.parametrize("texts", [0, 3, 200_000])
def test_numbers_of_json_as_ids_are_their_decimal_text(tmp_path: Path, texts: int) -> None:
    """Whole numbers of any size, beside texts or after many of them; each row once."""
    numbers = [5, 0, 2**63, 2**64 + 1, 10**40, -7]
    names = [f"t{row}" for row in range(texts)]
    keys = [*names, *numbers, "007"] if texts else numbers
    lines = [json.dumps({"note": [1], "key": key, "mark": row}) for row, key in enumerate(keys)]
    path = tmp_path / "s.jsonl"
    path.write_text("\n".join([*lines, ""]))
    found: list[Any] = []
    for ids, values in read_scores(str(path), parse_score(path)):
        found += zip(ids.to_pylist(), values.to_pylist(), strict=True)
    assert found == [(str(key), float(row)) for row, key in enumerate(keys)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"key": 1.0, "mark": 1}', "row 1, column key: 1.0, needed text or a whole number"),
        ('{"key": true, "mark": 1}', "row 1, column key: True, needed text"),
        ('{"key": 2, "mark": "1"}', "row 1, column mark: '1', needed a number"),
        ('{"key": 2, "mark": true}', "row 1, column mark: True, needed a number"),
        ('{"key": 2', "row 1: not JSON"),
        ("[2]", "row 1: not a JSON object"),
        ('{"key": "\\ud800", "mark": 1}', "cannot be read as ids"),
        ('{"key": 2, "mark": 1' + 400 * "0" + "}", "cannot be read as ids"),
    ],
)
def test_json_that_cannot_be_ids_and_numbers_is_named(
    tmp_path: Path, line: str, message: str
) -> None:
    """A float has more than one spelling, so it is no id; the row is named."""
    path = tmp_path / "s.jsonl"
    path.write_text('{"key": 1, "mark": 1}\n' + line + "\n")
    with pytest.raises(InputError) as caught:
        list(read_scores(str(path), parse_score(path)))
    assert message in str(caught.value)


def parse_score(path: Path) -> Score:
    """A score of this file."""
    return Score(name="mark", kind="file", path=str(path), id_column="key", column="mark")


@pytest.mark.parametrize("missing", ["drop", "fill", "error"])
@pytest.mark.parametrize("matching", [1, 2])
def test_a_score_of_few_documents_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, missing: str, matching: int
) -> None:
    """Below half of them, with an id of either side, whatever is done about those without."""
    found = {f"{'d' if row < matching else 'x'}{row:03d}": 1.0 for row in range(4)}
    path = write_scores(tmp_path / "s.csv", found)
    scores = [column(missing=missing, kind="file", path=str(path), id_column="key", column="mark")]
    with contextlib.suppress(InputError):
        make_run(tmp_path, {"id": [f"d{row:03d}" for row in range(4)]}, scores=scores)
    few = "s.csv has the ids of only 1 of 4 documents; its ids look like 'x001', those of"
    assert (few in caplog.text) == (matching == 1)


def write_scores(path: Path, found: dict[str, float]) -> Path:
    """Scores by key, in the format of the path's suffix."""
    keys, marks = list(found), list(found.values())
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"key": keys, "mark": marks}), path)
    elif path.suffix == ".csv":
        lines = ["mark,key,note", *(f"{found[key]},{key},x" for key in keys)]
        path.write_text("\n".join(lines) + "\n")
    else:
        path.write_text("".join(json.dumps({"key": k, "mark": found[k]}) + "\n" for k in keys))
    return path


def file_run(tmp_path: Path, documents: int = 9) -> tuple[Run, Path]:
    """Three shards with two scores, of Parquet and CSV, in folders of two files each."""
    ids = [f"d{row:03d}" for row in range(documents)]
    scores = []
    for place, suffix in enumerate(("parquet", "csv")):
        folder = tmp_path / suffix
        folder.mkdir()
        found = {name: row + place / 2 for row, name in reversed([*enumerate([*ids, "other"])])}
        for part in range(2):
            half = dict([*found.items()][part::2])
            write_scores(folder / f"{part}.{suffix}", half)
        more = {"kind": "file", "path": str(folder), "id_column": "key", "column": "mark"}
        scores.append({**column(**more), "name": suffix})
    return make_run(tmp_path, {"id": ids}, rows=3, scores=scores), tmp_path / "csv" / "1.csv"


def test_an_id_twice_in_score_files_is_refused(tmp_path: Path) -> None:
    """Either score could be wrong, so the first shard that has such an id fails naming it."""
    run, path = file_run(tmp_path)
    with path.open("a") as file:
        file.write("1,d007,x\n2,d007,x\n3,d004,x\n4,other,x\n")
    refused = pytest.raises(
        InputError, match=r"csv, shard 00001, column key: 1 ids occur .*'d004' 2 times"
    )
    with refused:
        join_scores(run, COMPUTE)
    assert run.states("file_scores") == ["done", "missing", "missing"]


def test_score_files_are_read_once_for_all_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file of each score, and a lost shard is joined again to the same bytes."""
    opened: list[str] = []

    def noting(path: str, score: Score) -> Any:
        opened.append(path)
        return read_scores(path, score)

    monkeypatch.setattr("datamask.source.score_files.read_scores", noting)
    run, _ = file_run(tmp_path)
    opened.clear()
    join_scores(run, COMPUTE)
    assert [Path(path).name for path in opened] == ["0.parquet", "1.parquet", "0.csv", "1.csv"]
    rows = read(run, "file_scores")
    assert rows == [{"parquet": float(row), "csv": row + 0.5} for row in range(9)]
    lost, kept = run.path("file_scores", 1), run.path("file_scores", 2)
    content, stamp = lost.read_bytes(), kept.stat().st_mtime_ns
    lost.unlink()
    join_scores(run, Compute(duckdb_memory="60MB", duckdb_threads=1))
    assert (lost.read_bytes(), kept.stat().st_mtime_ns) == (content, stamp)


def test_joined_scores_of_other_documents_are_not_used(tmp_path: Path) -> None:
    """A source that was written in another order after the join does not get its scores."""
    run, _ = file_run(tmp_path)
    join_scores(run, COMPUTE)
    path = tmp_path / "source" / "a.parquet"
    pq.write_table(pq.read_table(path)[::-1], path, row_group_size=3)
    with pytest.raises(CorruptFileError, match=r"file_scores/00001\.parquet: its ids differ"):
        import_scores(run, 1, COMPUTE)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("mark,key\nhigh,d000\n", r": cannot be read as ids \(key\) and numbers \(mark\)"),
        ("other,key\n1,d000\n", ", column mark: absent; set .*: other, key"),
    ],
)
def test_unfit_score_files_are_refused(tmp_path: Path, content: str, message: str) -> None:
    """Words instead of numbers, or no such column, name the file and the column."""
    run, path = file_run(tmp_path)
    path.write_text(content)
    with pytest.raises(InputError, match=rf"csv/1\.csv{message}"):
        join_scores(run, COMPUTE)


def test_nothing_left_to_select_fails_before_embedding(tmp_path: Path) -> None:
    """Dropping more than the budget allows is one line with the reasons."""
    columns = {"grade": [1.0, None, None, 2.0]}
    run = make_run(tmp_path, columns, ratio=0.75, prune_fraction=0, scores=[column(missing="drop")])
    with pytest.raises(SettingsError, match=r"3 documents are to be kept.* 2 missing-score"):
        score(run)


def test_a_shard_without_any_text_is_empty_not_an_error(tmp_path: Path) -> None:
    """Its documents are all dropped and counted; the other shards carry the budget."""
    run = make_run(tmp_path, {"text": [" ", None, "", "\n", "some text", "more"]}, prune_fraction=0)
    assert [row["dropped"] for row in score(run)] == ["empty"] * 4 + [None] * 2
    assert [run.receipt("quality", shard).metrics["kept"] for shard in (0, 1)] == [0, 2]


def test_nothing_left_at_all_is_an_input_error(tmp_path: Path) -> None:
    """A corpus of white space says so, with the counts."""
    with pytest.raises(InputError, match=r"no document is left of 2 \(2 empty"):
        score(make_run(tmp_path, {"text": [" ", None]}))


def test_float_token_counts_with_gaps_are_integers_or_null(tmp_path: Path) -> None:
    """Counts that pandas turned into floats keep their values, and NaN is no number."""
    run = make_run(tmp_path, {"token_count": [3.0, float("nan"), None]}, prune_fraction=0)
    score(run)
    assert [row["tokens"] for row in read(run, "scores")] == [3, None, None]


def test_a_full_disk_under_duckdb_can_be_tried_again(tmp_path: Path) -> None:
    """The line says what to do; memory that does not suffice names the setting."""
    full = pytest.raises(StorageError, match="no space left for DuckDB")
    with full, temporary_duckdb(tmp_path, COMPUTE):
        raise duckdb.IOException("IO Error: Could not write file: No space left on device")
    small = pytest.raises(RunError, match=r"raise compute\.duckdb_memory")
    with small, temporary_duckdb(tmp_path, COMPUTE):
        raise duckdb.OutOfMemoryException("Out of Memory Error: failed to allocate")
    assert list(tmp_path.iterdir()) == []


def test_only_what_is_stale_is_written_and_bytes_are_equal(tmp_path: Path) -> None:
    """A lost file is made again with the same bytes, the others are left alone."""
    run = make_run(tmp_path, {"grade": [5, 3, 8, 1, 2, 9]}, rows=2, scores=[column("rank")])
    score(run)
    path = run.path("quality", 1)
    content, other = path.read_bytes(), run.path("quality", 0).stat().st_mtime_ns
    path.unlink()
    combine_scores(run, Compute(duckdb_threads=1))
    assert path.read_bytes() == content
    assert run.path("quality", 0).stat().st_mtime_ns == other


def test_layout_features_takes_quality_as_it_is(tmp_path: Path) -> None:
    """The published input needs no text; nothing is empty and nothing pruned by default."""
    table = pa.table(
        {
            "chunk_id": [7, 8],
            "quality_score": pa.array([0.5, 0.25], pa.float32()),
            "feature_arr": pa.array([[1.0, 0.0], [0.0, 1.0]], pa.list_(pa.float16(), 2)),
        }
    )
    pq.write_table(table, tmp_path / "in.parquet")
    data = {
        "source": {"path": str(tmp_path / "in.parquet"), "layout": "features"},
        "embedding": {"dimension": 2},
    }
    rows = score(plan_run(tmp_path / "run", parse_settings(data)))
    assert [(row["id"], row["quality"], row["dropped"]) for row in rows] == [
        ("7", 0.5, None),
        ("8", 0.25, None),
    ]


DOMAINS = ["a.org"] * 40 + ["b.org"] * 150 + ["c.org"] * 3 + [None] * 7
COMPARED = ["z-score", "min-max", "rank"]


def plainly(values: list[float], normalisation: str) -> list[float]:
    """Values normalised among themselves, from the definitions."""
    mean, low = sum(values) / len(values), min(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
    extent = max(values) - low
    if normalisation == "z-score":
        return [(value - mean) / deviation if deviation else 0.0 for value in values]
    if normalisation == "min-max":
        return [(value - low) / extent if extent else 0.0 for value in values]
    ordered = sorted(values)
    ties = [(bisect_left(ordered, value), bisect_right(ordered, value)) for value in values]
    return [(low + high - 1) / 2 / len(values) for low, high in ties]


@pytest.mark.parametrize("normalisation", COMPARED)
def test_scores_are_compared_within_groups(tmp_path: Path, normalisation: str) -> None:
    """Each value is a mix of its place in the group, by size, and its place in the whole.

    The receipt tells what each group has of the best tenth either way.
    """
    generator = random.Random(1)
    levels = {"a.org": 5.0, "b.org": 0.0, "c.org": 9.0, None: -3.0}
    grades = [levels[d] + round(generator.gauss(0, 1 + (d == "a.org")), 1) for d in DOMAINS]
    urls = [d and f"https://{d}/page" for d in DOMAINS]
    one = column(normalisation, normalise_within="domain", weight=2.0)
    columns = {"grade": grades, "url": urls}
    run = make_run(tmp_path, columns, rows=64, prune_fraction=0.1, scores=[one])
    rows = score(run)
    whole = plainly(grades, normalisation)
    expected = list(whole)
    for domain in levels:
        places = [place for place, one in enumerate(DOMAINS) if one == domain]
        weight = len(places) / (len(places) + 10)
        within = plainly([grades[place] for place in places], normalisation)
        for place, value in zip(places, within, strict=True):
            expected[place] = weight * value + (1 - weight) * whole[place]
    assert [row["grade"] for row in rows] == pytest.approx(expected, abs=1e-6)
    assert [row["quality"] for row in rows] == pytest.approx([2 * v for v in expected], abs=1e-6)
    found = {row["name"]: row for row in run.receipt("quality", 0).metrics["score_groups"]}
    for key, values in (("best_whole", whole), ("best_within", expected)):
        cut = sorted(values, reverse=True)[20]
        for domain in levels:
            best = sum(v > cut for v, d in zip(values, DOMAINS, strict=True) if d == domain)
            assert found[domain or "(none)"][key] == best
    assert found["c.org"]["documents"] == 3 and found["(none)"]["kind"] == "domain"


def test_scores_are_compared_within_folders(tmp_path: Path) -> None:
    """`source` is the folder of a document's file, also where a shard has files of several."""
    for name, values in (("web", [1.0, 2.0, 3.0]), ("books", [10.0, 30.0])):
        (tmp_path / "source" / name).mkdir(parents=True)
        ids = [f"{name}-{place}" for place in range(len(values))]
        table = pa.table({"id": ids, "text": ids, "grade": values})
        pq.write_table(table, tmp_path / "source" / name / "a.parquet")
    one = column("min-max", normalise_within="source")
    data = {
        "source": {"path": str(tmp_path / "source")},
        "quality": {"scores": [one], "prune_fraction": 0},
        "selection": {"documents": 1},
        "embedding": {"method": "lexical"},
    }
    rows = {
        row["id"]: row["grade"] for row in score(plan_run(tmp_path / "run", parse_settings(data)))
    }
    assert rows["books-1"] == pytest.approx(2 / 12 + 10 / 12)
    assert rows["web-1"] == pytest.approx(3 / 13 * 0.5 + 10 / 13 * 1 / 29)


def test_disagreement_of_scores_is_scipy_s(tmp_path: Path) -> None:
    """Spearman's correlation of each pair, over documents that have both; null for a constant."""
    from scipy.stats import spearmanr

    generator = random.Random(2)
    a = [round(generator.gauss(0, 1), 1) for _ in range(60)]
    b = [x + generator.gauss(0, 1) if x > -1 else None for x in a]
    names = {"a": a, "b": b, "c": [1.0] * 60}
    scores = [{**column(), "name": n, "column": n, "missing": "drop"} for n in names]
    run = make_run(tmp_path, names, rows=20, scores=scores)
    score(run)
    found = run.receipt("quality", 0).metrics["score_correlations"]
    both = [(x, y) for x, y in zip(a, b, strict=True) if y is not None]
    expected = spearmanr(*zip(*both, strict=True)).statistic
    assert [(r["score"], r["other"], r["documents"]) for r in found] == [
        ("a", "b", len(both)),
        ("a", "c", 60),
        ("b", "c", len(both)),
    ]
    assert found[0]["correlation"] == pytest.approx(expected, abs=1e-6)
    assert found[1]["correlation"] is found[2]["correlation"] is None


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


@given(st.text(max_size=300))
@settings(max_examples=100, deadline=None)
def test_heuristic_is_between_0_and_1(text: str) -> None:
    """Every text has a score in [0, 1]; white space alone has 0."""
    assert 0 <= score_text(text) <= 1
    assert text.split() or score_text(text) == 0


def test_heuristic_prefers_prose() -> None:
    """Prose beats each kind of text that the parts are meant to catch."""
    prose = "The cat sat on the mat because it was warm and there was nothing else to do. "
    poor = ["buy now " * 10, "1234 5678 " * 8, "{}();<>[] a=b; " * 5, "cat dog fish bird"]
    assert all(score_text(prose) > score_text(text) + 0.1 for text in poor)
