"""The order in which documents are kept, and where it reaches a number of units.

Documents are kept in the order of higher logit, higher quality, smaller id. `last_within` finds the
last one in a table of DuckDB, out of core and without sorting the table: it counts the units in
bands of the first column, and sorts only the documents of the band in which the number is reached.
"""

from __future__ import annotations

from typing import Any

from datamask.storage.duckdb_scratch import execute

BANDS = 4096
"""Equal bands of values between the least and the greatest (docs/log.md#threshold)."""

MOST_SORTED = 2**20
"""Most documents that are sorted, unless more have the same value (docs/log.md#threshold)."""

ORDER = "logit DESC, quality DESC, id"
"""SQL: the order in which documents are kept."""

Key = tuple[float, float, str]
NOTHING: Key = (float("inf"), 0.0, "")
"""The key before the first document, if nothing is kept."""


def is_kept(last: tuple[Any, ...]) -> str:
    """SQL condition: whether a document is *last* or comes before it in the order."""
    if last == NOTHING:
        return "false"
    logit, quality = f"{last[0]!r}::FLOAT", f"{last[1]!r}::DOUBLE"
    name = last[2].replace("'", "''")
    return (
        f"(logit > {logit} OR (logit = {logit} AND (quality > {quality} OR (quality = {quality} "
        f"AND id <= '{name}'))))"
    )


def last_within(connection: Any, table: str, total: int, order: str = ORDER) -> tuple[Any, ...]:
    """The row of a table at which the `units` in *order* reach *total*; the last if none does.

    Args:
        connection: DuckDB.
        table: with `units`, and the columns of *order*, of which the first is a finite number.
        total: the units to reach; `NOTHING` is returned for 0.
        order: as in ORDER BY; the first column is in descending order.
    """
    if total <= 0:
        return NOTHING
    columns = order.replace(" DESC", "")
    value = f"{columns.partition(',')[0]}::DOUBLE"
    remaining, in_band = total, "true"
    while True:
        ((least, greatest, number),) = execute(
            connection,
            f"SELECT min({value}), max({value}), count(*) FROM {table} WHERE {in_band}",
        )
        if number <= MOST_SORTED or least == greatest:
            break
        share = f"({value} - {least!r}::DOUBLE) / {greatest - least!r}::DOUBLE"
        band = f"least({BANDS - 1}, floor({BANDS} * ({share})))::INT"
        bands = execute(
            connection,
            f"SELECT {band} AS band, sum(units)::BIGINT FROM {table} WHERE {in_band} "
            "GROUP BY band ORDER BY band DESC",
        )
        # All bands above the one in which the total is reached are kept whole.
        while len(bands) > 1 and bands[0][1] < remaining:
            remaining -= bands.pop(0)[1]
        in_band += f" AND {band} = {bands[0][0]}"
    window = f"OVER (ORDER BY {order} ROWS UNBOUNDED PRECEDING)"
    rows = execute(
        connection,
        f"SELECT {columns} FROM (SELECT {columns}, sum(units) {window} AS upto, "
        f"row_number() {window} AS number FROM {table} WHERE {in_band}) "
        f"ORDER BY upto < {remaining}, if(upto < {remaining}, -number, number) LIMIT 1",
    )
    return tuple(rows[0]) if rows else NOTHING


def midway(last: float | None, following: float | None) -> float:
    """Between the last logit that is kept and the next one; 1 beyond the only one."""
    if last is None:
        return 0.0 if following is None else following + 1
    return last - 1 if following is None else (last + following) / 2
