"""Values of JSON lines, CSV and Arrow are kept, or refused with file, row and column."""

import json
import tracemalloc
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.errors import InputError
from datamask.planning.first_settings import TEXTS
from datamask.source import formats, one_schema
from datamask.source.convert import first_records
from tests.source.converting import converted, write


@pytest.mark.parametrize("files", [["ab"], ["a", "b"], ["b", "a"]])
def test_values_that_would_be_one_column_are_refused(tmp_path, files):
    """A key with a dot, and a key within an object: in one file or in two."""
    lines = {"a": '{"id": "1", "m.a": 1}\n', "b": '{"id": "2", "m": {"a": 2}}\n'}
    for number, names in enumerate(files):
        path = write(tmp_path / "source" / f"{number}.jsonl", [])
        path.write_text("".join(map(lines.get, names)))
    with pytest.raises(InputError) as caught:
        converted(path.parent, tmp_path / "run")
    assert str(path) in str(caught.value) and "column m.a" in str(caught.value)


POST = "1234567890123456789"
"""A number that no float64 holds."""


def test_names_and_numbers_keep_what_they_say(tmp_path):
    """Equal names in two folders are two copies; leading zeros and all digits of a number stay."""
    for folder in ("a", "b"):
        path = tmp_path / "source" / folder / "0.csv"
        path.parent.mkdir(parents=True)
        path.write_text(f"key,text,count,share,post\n007,{folder},3,0.5,{POST}\n008,,4,,7\n")
    rows = [table.to_pylist() for table in converted(tmp_path / "source", tmp_path / "run")]
    for folder, found in zip("ab", rows, strict=True):
        first = {"key": "007", "text": folder, "count": 3, "share": 0.5, "post": int(POST)}
        assert [{k: row[k] for k in first} for row in found] == [
            first,
            {"key": "008", "text": None, "count": 4, "share": None, "post": 7},
        ]


def test_categories_that_polars_writes(tmp_path):
    """Arrow files have them as dictionaries of views; values and gaps stay."""
    path = tmp_path / "source" / "a.arrow"
    path.parent.mkdir()
    columns = {"id": ["a", "b", "c"], "text": ["x", "x", "y"], "dump": ["one", None, "two"]}
    frame = pl.DataFrame(columns)
    frame.with_columns(pl.col("text", "dump").cast(pl.Categorical)).write_ipc(path)
    [found] = converted(path.parent, tmp_path / "run")
    assert found.to_pydict() == columns


@pytest.mark.parametrize(
    ("column", "ids"),
    [
        ("ID", ["2301.10140", "2301.1014", "1e5"]),
        ("id", ["007", "2301.10140"]),
        ("id", ["7", "-0"]),
        ("id", ["7", "-8"]),
    ],
)
def test_ids_of_csv_keep_every_character(tmp_path, column, ids):
    """Though all look like fractions or like whole numbers; scores beside them are numbers."""
    path = tmp_path / "source" / "a.csv"
    path.parent.mkdir()
    lines = "".join(f"{name},1.50,text\n" for name in ids)
    path.write_text(f"{column},edu,text\n{lines}")
    [table] = converted(path.parent, tmp_path / "run", columns={"id": column})
    assert table[column].cast(pa.string()).to_pylist() == ids
    assert table.schema.field("edu").type == pa.float64()
    first_records(str(path), 99, tmp_path / "copy.parquet", TEXTS)
    assert pq.read_table(tmp_path / "copy.parquet").equals(table)


CSV = "id,text\na,first\nb,second\n"
REFUSED = {
    "a.jsonl.zst": (pa.compress(b'{"id": 1}\n' * 99, codec="zstd", asbytes=True)[:-1], ""),
    "a.csv.zst": (pa.compress(CSV.encode(), codec="zstd", asbytes=True)[:-1], ""),
    "quote.csv": (f'{CSV}c,"third\nd,fourth\n', "line 5"),
    "short.csv": (f"{CSV}\nc\n", "line 5"),
    "two.csv": (CSV.replace("id", "TEXT"), "column TEXT"),
    "ends.csv": (f"{CSV}c,third\r\n", "end alike"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_loses_rows_is_refused(name, tmp_path):
    """Cut off within compressed bytes or a quote, or with a row that is none: which file and row.

    DuckDB reads what is before a cut, and says nothing.
    """
    content, where = REFUSED[name]
    (tmp_path / "source").mkdir()
    path = tmp_path / "source" / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as caught:
        converted(path.parent, tmp_path / "run")
    assert str(path) in str(caught.value) and where in str(caught.value)
    if name.endswith(".zst"):
        with pytest.raises(InputError, match=name):
            first_records(str(path), 99, tmp_path / "copy.parquet", TEXTS)


def test_a_name_is_no_pattern_and_no_column(tmp_path):
    """Names with brackets, stars and equals signs stand for themselves; so do columns without."""
    for name in ("a[b].csv", "ab.csv", "a*.csv", "text=x/c.csv", "d[1]/a.csv", "d1/a.csv"):
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f",id,text\n5,{name},words of {name}\n")
        path.with_suffix(".jsonl").write_text(json.dumps({"id": name, "json": "x"}) + "\n")
    rows = [row for t in converted(tmp_path / "source", tmp_path / "run") for row in t.to_pylist()]
    found = sorted((row["id"], row["text"]) for row in rows if row["column0"] == 5)
    names = sorted(row["id"] for row in rows if row["json"] == "x")
    assert found == [(name, f"words of {name}") for name in names]
    assert len(names) == 6


def test_values_of_other_types_in_other_files_are_text(tmp_path):
    """Whole numbers, texts, lists and CSV in one column: none is lost, whatever file is first."""
    folder, values = tmp_path / "source", ["7", "seven", "[7]", "07", "7.5"]
    for name, value in zip("abcde", ("7", '"seven"', "[7]", '"07"', "7.5"), strict=True):
        write(folder / f"{name}.jsonl", []).write_text(f'{{"id": "{name}", "grade": {value}}}\n')
    write(folder / "0.csv", [{"id": "0", "grade": "7"}])
    rows = [row for table in converted(folder, tmp_path / "run") for row in table.to_pylist()]
    assert rows == [
        {"id": name, "grade": value} for name, value in zip("0abcde", ["7", *values], strict=True)
    ]


@pytest.mark.parametrize(
    ("name", "begin"), [("a.csv.gz", 'id,text\n1,"'), ("a.jsonl.zst", '{"id": "a"}\n{"id": "')]
)
def test_a_long_line_is_refused_before_it_is_read(tmp_path, monkeypatch, name, begin):
    """A file of a kilobyte with a line of megabytes, where a line may have a page: by its line."""
    monkeypatch.setattr("datamask.source.rows.RECORD_BYTES", 2**12)
    path, codec = tmp_path / name, {".gz": "gzip", ".zst": "zstd"}[Path(name).suffix]
    with pa.CompressedOutputStream(str(path), codec) as file:
        file.write(begin.encode() + b"a" * 2**22)
    tracemalloc.start()
    with pytest.raises(InputError) as caught:
        converted(tmp_path, tmp_path / "run")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert f"{path}, line 2" in str(caught.value)
    assert peak < 2**21


@pytest.mark.parametrize("value", ["[" * 10**5 + "]" * 10**5, '{"a":' * 10**5 + "1" + "}" * 10**5])
def test_a_deep_value_is_refused_by_its_line(tmp_path, value):
    """It ended as a bug of recursion, after lines that were read."""
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"id": "a"}}\n\n{{"id": "b", "of": {value}}}\n')
    with pytest.raises(InputError) as caught:
        converted(tmp_path, tmp_path / "run")
    assert f"{path}, line 3" in str(caught.value)


def test_batches_of_arrow_files_are_read_in_parts(tmp_path, monkeypatch):
    """One batch may hold more text than a column of strings can."""
    monkeypatch.setattr(one_schema, "PIECE_BYTES", 1000)
    table = pa.table({"id": [*map(str, range(99))], "text": ["a" * row for row in range(99)]})
    path = str(tmp_path / "a.arrow")
    with pa.ipc.new_file(path, table.schema) as file:
        file.write(table.to_batches()[0])
    parts = list(formats.read_records(path, path, table.schema))
    assert len(parts) > 5 and max(part.nbytes for part in parts) <= 1000
    assert all(column.offset == 0 for part in parts for column in part.columns)
    assert pa.Table.from_batches(parts).combine_chunks() == table
