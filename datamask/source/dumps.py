"""Count the documents of each shard by dump (crawl, collection).

Planning counts them while it checks the rows, so that the subset's files, one set per dump, are
known before any document is selected. A dump's name becomes the name of a folder and of a
configuration on the Hub; unsuitable names are counted together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from datamask.config.outputs import OTHER_DUMPS
from datamask.runs.schemas import Piece
from datamask.storage.duckdb_scratch import execute, execute_with

MOST_COUNTED = 1000
"""Beyond this number of dumps none is counted: they would not be published separately."""

RESERVED = ("default", "sample", "scores")
_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,95}$"


def dump_names(values: pa.Array) -> pa.Array:
    """Return dumps as names of folders: unchanged, or `other` (null, reserved or unsafe names)."""
    distinct = values.cast(pa.string()).dictionary_encode(null_encoding="encode")
    texts = distinct.dictionary
    reserved = pc.is_in(texts, value_set=pa.array(RESERVED))
    good = pc.and_not(pc.match_substring_regex(texts, _NAME), reserved)
    names = pc.if_else(pc.fill_null(good, False), texts, OTHER_DUMPS)
    return names.take(distinct.indices)


def create_dumps(connection: Any, pieces: Sequence[Piece]) -> None:
    """Make the tables for counting: `dumps`, which `COUNT_DUMPS` fills, and `pieces`.

    `pieces` has first row and shard of each piece of the plan, by number of the file.
    """
    columns = "shard INTEGER, dump VARCHAR, documents BIGINT, first HUGEINT"
    execute(connection, f"CREATE TABLE dumps ({columns})")
    rows_of: Counter[str] = Counter()
    rows: dict[str, list[int]] = {"file": [], "start": [], "shard": []}
    for piece in pieces:
        start = rows_of[piece.path]
        rows_of[piece.path] += piece.rows
        file = len(rows_of) - 1  # The pieces of a file follow each other.
        for name, number in zip(rows, (file, start, piece.shard), strict=True):
            rows[name].append(number)
    execute_with(connection, pa.table(rows), "CREATE TABLE pieces AS FROM arriving")


DUMP_NAME = "name of dump"
"""Column of a row's `dump_names`, which no group of the user's own can be called."""

COUNT_DUMPS = f"""
INSERT INTO dumps SELECT shard, "{DUMP_NAME}", count(*), min(arriving.file::HUGEINT << 64 | row)
FROM arriving ASOF JOIN pieces ON pieces.file = arriving.file AND pieces.start <= arriving.row
GROUP BY ALL
"""
"""SQL that counts rows by shard and dump (`dump_names`, or null if it is not UTF-8)."""


def dumps_by_shard(connection: Any, shards: int) -> list[dict[str, int]]:
    """Return the counts of each shard, in order of first occurrence.

    The list is empty if the dumps are not UTF-8, or too many.
    """
    by_shard: list[dict[str, int]] = [{} for _ in range(shards)]
    [(number, unknown)] = execute(
        connection, "SELECT count(DISTINCT dump), count(*) FILTER (dump IS NULL) FROM dumps"
    )
    if unknown or number > MOST_COUNTED:
        return []
    for shard, dump, documents in execute(
        connection,
        "SELECT shard, dump, sum(documents)::BIGINT FROM dumps GROUP BY ALL ORDER BY min(first)",
    ):
        by_shard[shard][dump] = documents
    return by_shard
