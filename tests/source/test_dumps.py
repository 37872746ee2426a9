"""Counting dumps: against plain Python, and with names that cannot be folders."""

from collections import Counter
from pathlib import PurePosixPath

import duckdb
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from datamask.runs.schemas import Piece
from datamask.source.dumps import (
    COUNT_DUMPS,
    DUMP_NAME,
    MOST_COUNTED,
    create_dumps,
    dump_names,
    dumps_by_shard,
)
from datamask.storage.duckdb_scratch import execute_with


@given(st.lists(st.text(max_size=100) | st.none()))
@settings(deadline=None)
def test_a_dump_is_a_safe_folder_or_among_others(values):
    """A name is kept as it is or not at all, and never leads out of its folder."""
    for value, name in zip(
        values, dump_names(pa.array(values, pa.string())).to_pylist(), strict=True
    ):
        assert name in (value, "other")
        path = PurePosixPath("data") / name
        assert path.name == name and path.parent == PurePosixPath("data")
        assert not name.startswith(".") and name not in ("default", "sample", "scores")


def test_names():
    """FineWeb's are kept; what breaks paths, globs or configurations is not."""
    good, bad = ["CC-MAIN-2013-20", "eng_Latn"], ["../secret", "a\n", "default", None]
    assert dump_names(pa.array([*good, *bad])).to_pylist() == [*good, *["other"] * len(bad)]


def piece(shard: int, path: str, rows: int) -> Piece:
    """The next rows of a file in a shard."""
    return Piece(shard, path, 0, 1, 0, rows, 0, "")


def counted(pieces: list[Piece], reads: list[tuple[list[int], list[int], pa.Array]]) -> list:
    """The dumps of each shard, after rows were read in several batches."""
    with duckdb.connect() as connection:
        create_dumps(connection, pieces)
        for file, row, dumps in reads:
            rows = pa.table({"file": file, "row": row, DUMP_NAME: dumps})
            execute_with(connection, rows, COUNT_DUMPS)
        return dumps_by_shard(connection, pieces[-1].shard + 1)


@given(st.lists(st.sampled_from(["b", "a", None, "c", "x/y"]), min_size=12, max_size=12))
@settings(deadline=None, max_examples=30)
def test_dumps_are_counted_by_shard_in_their_order(values):
    """Against a plain count: a file in two shards, two files in one, batches across both."""
    pieces = [piece(0, "z", 4), piece(1, "z", 3), piece(1, "a", 5)]
    files, rows = [0] * 7 + [1] * 5, [*range(7), *range(5)]
    column = pa.array(values, pa.string()).dictionary_encode()
    borders = ((3, 9), (0, 3), (9, 12))  # threads read in any order
    reads = [(files[i:j], rows[i:j], dump_names(column[i:j])) for i, j in borders]
    found = counted(pieces, reads)
    named = ["other" if value in (None, "x/y") else value for value in values]
    assert found == [Counter(named[:4]), Counter(named[4:])]
    assert [list(shard) for shard in found] == [
        list(dict.fromkeys(named[:4])),
        list(dict.fromkeys(named[4:])),
    ]


def test_dumps_that_cannot_be_published_apart_are_not_counted():
    """Names that are not UTF-8 (null), or more dumps than anyone would publish apart."""
    bad = ([0], [1], pa.nulls(1, pa.string()))
    good = ([0], [0], pa.array(["a"]))
    assert counted([piece(0, "a", 2)], [good, bad]) == []
    for number, known in ((MOST_COUNTED, 1), (MOST_COUNTED + 1, 0)):
        names = pa.array([f"d{row}" for row in range(number)])
        rows = list(range(number))
        assert len(counted([piece(0, "a", number)], [([0] * number, rows, names)])) == known
