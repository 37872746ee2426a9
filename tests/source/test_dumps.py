"""Counting dumps: against plain Python, and with names that cannot be folders."""

from __future__ import annotations

from collections import Counter
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datamask.runs.run import Piece
from datamask.source.dumps import MOST_COUNTED, count_dumps, dump_names
from datamask.source.reading import read_footers


@given(st.lists(st.text(max_size=100) | st.none()))
@settings(deadline=None)
def test_a_dump_is_a_safe_folder_or_among_others(values: list[str | None]) -> None:
    """A name is kept as it is or not at all, and never leads out of its folder."""
    for value, name in zip(
        values, dump_names(pa.array(values, pa.string())).to_pylist(), strict=True
    ):
        assert name in (value, "other")
        path = PurePosixPath("data") / name
        assert path.name == name and path.parent == PurePosixPath("data")
        assert not name.startswith(".") and name not in ("default", "sample", "scores")


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("CC-MAIN-2013-20", "CC-MAIN-2013-20"),
        ("eng_Latn", "eng_Latn"),
        ("../secret", "other"),
        ("a\n", "other"),
        ("default", "other"),
        (None, "other"),
    ],
)
def test_names(value: str | None, name: str) -> None:
    """FineWeb's are kept; what breaks paths, globs or configurations is not."""
    assert dump_names(pa.array([value], pa.string())).to_pylist() == [name]


def pieces_of(path: Path, dumps: pa.Array) -> list[Piece]:
    """A file of ten rows in two row groups, cut into shards of 4 and 6."""
    pq.write_table(pa.table({"id": range(10), "dump": dumps}), path, row_group_size=5)
    parts = ((0, 1, 0, 4), (0, 2, 4, 6))
    [file], _ = read_footers([str(path)])
    return [
        Piece(shard, str(path), first, count, skip, rows, 0, file.digest)
        for shard, (first, count, skip, rows) in enumerate(parts)
    ]


def test_dumps_are_counted_by_shard_in_their_order(tmp_path: Path) -> None:
    """Against a plain count of the same rows, and dictionaries keep the order of the source."""
    values = ["b", "a", None, "b", "c", "c", "a", "x/y", "c", "a"]
    column = pa.array(values).dictionary_encode()
    pieces = pieces_of(tmp_path / "0.parquet", column)
    found = count_dumps(pieces, "dump", pq.read_schema(tmp_path / "0.parquet"))
    named = ["other" if value in (None, "x/y") else value for value in values]
    assert found == [Counter(named[:4]), Counter(named[4:])]
    assert list(found[0]) == ["b", "a", "other"]


def test_without_a_usable_column_there_are_no_dumps(tmp_path: Path) -> None:
    """No column, one that is no text, or more dumps than anyone would publish apart."""
    pieces = pieces_of(tmp_path / "0.parquet", pa.array([b"\xff"] * 10))
    schema = pq.read_schema(tmp_path / "0.parquet")
    assert count_dumps(pieces, "dump", schema) == []
    assert count_dumps(pieces, "nothing", schema) == []
    many = pa.table({"dump": [f"d{row}" for row in range(MOST_COUNTED + 1)]})
    pq.write_table(many, tmp_path / "1.parquet")
    path = str(tmp_path / "1.parquet")
    [file], _ = read_footers([path])
    piece = Piece(0, path, 0, 1, 0, many.num_rows, 0, file.digest)
    assert count_dumps([piece], "dump", many.schema) == []
