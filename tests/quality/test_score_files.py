"""Score files are joined to their documents by id, and unfit files are refused with their name."""

import contextlib
import csv
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from datamask.config.compute import Compute
from datamask.config.scores import FileScore
from datamask.errors import CorruptFileError, InputError
from datamask.quality.file_scores import join_scores
from datamask.quality.importing import import_scores
from datamask.runs.output import write_output
from datamask.runs.run import Run
from datamask.source.rows import read_scores
from tests.finished import table_of
from tests.quality.runs import COMPUTE, column, make_run, write_scores


def parse_score(path: Path) -> FileScore:
    """A score of this file."""
    return FileScore(name="mark", kind="file", path=str(path), id_column="key", column="mark")


def rows_of_file(path: Path) -> list[tuple[str, float]]:
    """Every id and score that is read."""
    batches = read_scores(str(path), parse_score(path))
    return [
        row
        for ids, values in batches
        for row in zip(ids.to_pylist(), values.to_pylist(), strict=True)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("texts", [0, 3, 200_000])
def test_numbers_of_json_as_ids_are_their_decimal_text(tmp_path, texts):
    """Whole numbers of any size, alone or after few or many texts; each row once."""
    numbers = [5, 0, 2**63, 2**64 + 1, 10**40, -7]
    names = [f"t{row}" for row in range(texts)]
    keys = [*names, *numbers, "007"] if texts else numbers
    lines = [json.dumps({"note": [1], "key": key, "mark": row}) for row, key in enumerate(keys)]
    path = tmp_path / "s.jsonl"
    path.write_text("\n".join([*lines, ""]))
    assert rows_of_file(path) == [(str(key), float(row)) for row, key in enumerate(keys)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"key": 1.0, "mark": 1}', "line 2, column key: 1.0, needed text or a whole number"),
        ('{"key": 2, "mark": "1"}', "line 2, column mark: '1', needed a number"),
        ('{"key": 2', "line 2: not JSON"),
        ('{"key": 2, "mark": 1' + 400 * "0" + "}", "cannot be read as ids"),
    ],
)
def test_json_that_cannot_be_ids_and_numbers_is_named(tmp_path, line, message):
    """A float has more than one spelling, so it cannot be an id; the row is named."""
    path = tmp_path / "s.jsonl"
    path.write_text('{"key": 1, "mark": 1}\n' + line + "\n")
    with pytest.raises(InputError) as caught:
        list(read_scores(str(path), parse_score(path)))
    assert message in str(caught.value)


def test_a_lone_surrogate_in_an_id_is_read_as_in_the_source(tmp_path, caplog):
    """Half of a pair is U+FFFD there, and here; the log counts it."""
    path = tmp_path / "s.jsonl"
    path.write_text('{"key": "a", "mark": 1}\n{"key": "\\udc00\\ud83d\\ude00", "mark": 2}\n')
    assert rows_of_file(path) == [("a", 1.0), ("\ufffd\U0001f600", 2.0)]
    assert "1 lone surrogates" in caplog.text


@pytest.mark.parametrize("missing", ["drop", 0.0, "error"])
@pytest.mark.parametrize("matching", [1, 2])
def test_a_score_of_few_documents_is_logged(tmp_path, caplog, missing, matching):
    """Below half of them, with an id of each side, under every policy for missing scores."""
    given = {f"{'d' if row >= 4 - matching else 'x'}{row:03d}": 1.0 for row in range(4)}
    path = write_scores(tmp_path / "s.csv", given)
    scores = [column(missing=missing, kind="file", path=str(path), id_column="key", column="mark")]
    with contextlib.suppress(InputError):
        make_run(tmp_path, {"id": [f"d{row:03d}" for row in range(4)]}, scores=scores)
    few = "has the ids of only 1 of 4 documents; its first id is 'x000', that of the source 'd000'"
    assert (few in caplog.text) == (matching == 1)


def file_run(tmp_path: Path) -> Run:
    """Three shards with two scores, of Parquet and CSV, in folders of two files each."""
    ids = [f"d{row:03d}" for row in range(9)]
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
    return make_run(tmp_path, {"id": ids}, rows=3, scores=scores)


def test_score_files_are_read_once_for_all_shards(tmp_path, monkeypatch):
    """Each file of each score, and a lost shard is joined again to the same bytes."""
    opened: list[str] = []

    def noting(path: str, *more: Any) -> Any:
        opened.append(path)
        return read_scores(path, *more)

    monkeypatch.setattr("datamask.source.rows.read_scores", noting)
    run = file_run(tmp_path)
    opened.clear()
    join_scores(run, COMPUTE)
    assert [Path(path).name for path in opened] == ["0.parquet", "1.parquet", "0.csv", "1.csv"]
    rows = table_of(run, "file_scores").to_pylist()
    assert rows == [{"parquet": float(row), "csv": row + 0.5} for row in range(9)]
    lost, kept = run.path("file_scores", 1), run.path("file_scores", 2)
    content, stamp = lost.read_bytes(), kept.stat().st_mtime_ns
    lost.unlink()
    join_scores(run, Compute(duckdb_memory="60MB"))
    assert (lost.read_bytes(), kept.stat().st_mtime_ns) == (content, stamp)


def test_joined_scores_of_other_documents_are_not_used(tmp_path):
    """A file of another shard, put in the place of a shard's own, is noticed by its ids."""
    run = file_run(tmp_path)
    join_scores(run, COMPUTE)
    receipt = run.receipt("file_scores", 1)
    schema = pq.read_schema(run.path("file_scores", 1)).remove_metadata()
    others = pq.read_table(run.path("file_scores", 2)).replace_schema_metadata()
    write_output(run, "file_scores", 1, schema, [others], receipt.metrics | {"ids": "others"})
    with pytest.raises(CorruptFileError):
        import_scores(run, 1, COMPUTE)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("characters", [100, 700_000, 3_000_000])
def test_texts_of_any_length_with_line_breaks_are_read(tmp_path, kind, characters):
    """Wherever a block of the file ends: every row is read once, in order."""
    line = 'a "quoted", word\n'
    text, count = line * (characters // len(line)), max(2, 5_000_000 // characters)
    expected = [(f"{row:06d}", float(row)) for row in range(count)]
    path = tmp_path / f"scores.{kind}"
    with path.open("w", newline="") as file:
        if kind == "csv":
            rows = csv.writer(file)
            rows.writerow(["text", "key", "mark"])
            rows.writerows([text, key, mark] for key, mark in expected)
        else:
            for key, mark in expected:
                file.write(json.dumps({"text": text, "key": key, "mark": mark}) + "\n")
    assert rows_of_file(path) == expected


def test_quotes_that_do_not_end_are_named(tmp_path, monkeypatch):
    """A row larger than the largest block is an error of the file, which no setting repairs."""
    monkeypatch.setattr("datamask.source.rows.CSV_BLOCK", 2**10)
    path = tmp_path / "scores.csv"
    path.write_text('key,mark\na,1\nb,2\n"c,3\n' + "d,4\n" * 4000)
    with pytest.raises(InputError) as caught:
        rows_of_file(path)
    assert str(path) in str(caught.value) and "block" not in str(caught.value)
