"""The value at a place of the order of a corpus, without sorting it.

Values are counted in bins of the range that holds the place, and the range is narrowed to the bin
until one value is left. Each step reads the column once, and memory does not grow with the corpus.
"""

from __future__ import annotations

from typing import Any

from datamask.storage.duckdb_scratch import execute

BINS = 2**16
SORTED = 2**20
"""Values that are sorted rather than counted again."""


def value_at(connection: Any, rows: str, column: str, place: int) -> tuple[float, int]:
    """The value at a place of the ascending order, from 0, and its place among equal values.

    Args:
        connection: DuckDB.
        rows: what follows FROM, with a WHERE clause at its end.
        column: of finite doubles.
        place: less than the number of rows.
    """
    number, low, high = execute(
        connection, f"SELECT count(*), min({column}), max({column}) FROM {rows}"
    )[0]
    while low < high and number > SORTED:
        # Halves, because the difference of two doubles may be too large for one.
        bins = execute(
            connection,
            f"SELECT greatest(0, least({BINS - 1}, floor(({column} / 2 - $1 / 2) / "
            f"($2 / 2 - $1 / 2) * {BINS})))::INT AS bin, count(*), min({column}), max({column}) "
            f"FROM {rows} AND {column} BETWEEN $1 AND $2 GROUP BY bin ORDER BY bin",
            [low, high],
        )
        counted = iter(bins)
        _, count, least, largest = next(counted)
        while place >= count:
            place -= count
            _, count, least, largest = next(counted)
        if (least, largest) == (low, high):
            break
        number, low, high = count, least, largest
    if low < high:
        ordered = f"{rows} AND {column} BETWEEN $1 AND $2 ORDER BY {column}"
        value = execute(
            connection, f"SELECT {column} FROM {ordered} LIMIT 1 OFFSET {place}", [low, high]
        )[0][0]
        place -= execute(
            connection,
            f"SELECT count(*) FROM {rows} AND {column} >= $1 AND {column} < $2",
            [low, value],
        )[0][0]
        return value, place
    return low, place


def deciles(counts: list[tuple[int, int]], parts: int) -> list[int]:
    """The values that divide documents into *parts* equal parts.

    The k-th is the least value that at least k / *parts* of the documents do not exceed.

    Args:
        counts: ascending values, and how often each occurs; at least one.
        parts: 10 for deciles.
    """
    total = sum(number for _, number in counts)
    found, upto, values = [], 0, iter(counts)
    value = counts[0][0]
    for part in range(1, parts):
        while upto < -(-part * total // parts):
            value, number = next(values)
            upto += number
        found.append(value)
    return found
