"""The order in which documents of all shards are kept, and where it reaches a number of units.

Documents are kept in the order of higher logit, higher quality, smaller id. `last_of_corpus` finds
the last one in the files of the shards: it counts values (`order_statistics`) and loads only the
documents that share the last value. `last_within` finds it in a table of DuckDB: it counts values
in bands of 1/256 and sorts only the band that holds the last one, out of core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from datamask.config.compute import Compute
from datamask.runs import budget
from datamask.runs.files import read_columns
from datamask.runs.in_progress import each_in_turn
from datamask.runs.run import Run
from datamask.selection.documents import read_survivors, read_tokens
from datamask.selection.order_statistics import Count, value_at
from datamask.storage.duckdb_scratch import execute, execute_with, temporary_duckdb

Result = TypeVar("Result")

BAND = 1 / 256
FARTHEST = 2**20
"""Width of a band of values, and the absolute value beyond which all are in one band
(docs/log.md#threshold)."""

# See docs/log.md#memory.
ROWS_AT_ONCE = 65_536

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
        table: with units and the columns of *order*, by the first of which it is cut into bands.
        total: the units to reach; `NOTHING` is returned for 0.
        order: as in ORDER BY.
    """
    if total <= 0:
        return NOTHING
    columns = order.replace(" DESC", "")
    first = columns.partition(",")[0]
    band = f"floor(greatest(-{FARTHEST}, least({FARTHEST}, {first})) / {BAND!r})::BIGINT"
    bands = execute(
        connection,
        f"SELECT {band} AS band, sum(units)::BIGINT FROM {table} GROUP BY band ORDER BY band DESC",
    )
    # All bands above the one in which the total is reached are kept whole.
    left, place = total, 0
    for place, units in bands:
        if units >= left or place == bands[-1][0]:
            break
        left -= units
    last: tuple[Any, ...] = NOTHING
    rows = connection.execute(
        f"SELECT units, {columns} FROM {table} WHERE {band} = {place} ORDER BY {order}"
    )
    while batch := rows.fetchmany(ROWS_AT_ONCE):
        for units, *row in batch:
            left, last = left - units, tuple(row)
            if left <= 0:
                return last
    return last


class Last(NamedTuple):
    """The last document that is kept of the corpus, and how many are.

    Documents are counted by shard, units in all. The threshold is midway between the logit of this
    document and that of the next.
    """

    key: Key
    threshold: float
    documents: list[int]
    units: int


def last_of_corpus(run: Run, compute: Compute, total: int, *, by_quality: bool = False) -> Last:
    """The document at which the corpus reaches *total*; the last of all if none does.

    Args:
        run: the run; its stage `learning` is done.
        compute: reads `workers` shards at once.
        total: documents or tokens, like the budget; at least 1.
        by_quality: all logits count as 0, and units are documents.
    """
    shards = _Shards(run, compute, by_quality)
    left = budget.Survivors.of(run.receipt("quality", 0).metrics)
    is_reached = total <= (left.tokens_total if shards.in_tokens else left.kept_total)
    value, place = value_at(
        lambda count: shards.each(partial(shards.count, count, is_reached)),
        (total if is_reached else left.kept_total) - 1,
        64 if by_quality else 32,
    )
    value, following = 0.0 - value, -np.inf
    documents, units = [], 0
    with temporary_duckdb(run.root, compute) as connection:
        execute(
            connection,
            "CREATE TABLE tied (shard INTEGER, logit FLOAT, quality DOUBLE, id VARCHAR, "
            "units BIGINT)",
        )
        execute(connection, "BEGIN")
        for above, units_above, lower, tied in shards.each(partial(shards.around, value)):
            documents.append(above)
            units += units_above
            following = max(following, lower)
            if tied is not None:
                execute_with(connection, tied, "INSERT INTO tied FROM arriving")
        execute(connection, "COMMIT")
        logit, quality, name = last_within(connection, "tied", place + 1 if is_reached else total)
        kept = is_kept((logit, quality, name))
        counts = f"SELECT shard, count(*), sum(units)::BIGINT FROM tied WHERE {kept} GROUP BY shard"
        for shard, number, units_tied in execute(connection, counts):
            documents[shard] += number
            units += units_tied
        if execute(connection, f"SELECT count(*) FROM tied WHERE NOT {kept}")[0][0]:
            following = value
    threshold = midway(value, None if following == -np.inf else following)
    return Last((logit, quality, name), threshold, documents, units)


def logit_at(run: Run, compute: Compute, total: int) -> float:
    """The logit of `last_of_corpus`; −∞ if the corpus has no more than *total*."""
    shards = _Shards(run, compute, False)
    left = budget.Survivors.of(run.receipt("quality", 0).metrics)
    if total >= (left.tokens_total if shards.in_tokens else left.kept_total):
        return -np.inf
    value, _ = value_at(lambda one: shards.each(partial(shards.count, one, True)), total - 1, 32)
    return 0.0 - value


@dataclass(frozen=True, slots=True)
class _Shards:
    """The documents that survived pruning, by shard and in the source's order."""

    run: Run
    compute: Compute
    by_quality: bool

    @property
    def in_tokens(self) -> bool:
        return self.run.settings.selection.tokens is not None and not self.by_quality

    def each(self, work: Callable[[int], Result]) -> Iterator[Result]:
        return each_in_turn(work, range(self.run.num_shards), self.compute.workers, "shards")

    def around(self, value: float, shard: int) -> tuple[int, int, float, pa.Table | None]:
        """Documents above *value*, their units, the next lower value, the documents at *value*."""
        values = self._values(shard)
        units = read_tokens(self.run, shard) if self.in_tokens else np.ones(len(values), np.int64)
        above, equal = values > value, values == value
        tied = None
        if equal.any():
            found = read_survivors(self.run, shard, ["quality", "id"]).filter(pa.array(equal))
            logits = np.zeros(len(found)) if self.by_quality else values[equal]
            tied = pa.table(
                {
                    "shard": pa.repeat(shard, len(found)),
                    "logit": logits,
                    "quality": found["quality"],
                    "id": found["id"],
                    "units": units[equal],
                }
            )
        following = values[values < value].max(initial=-np.inf)
        return int(above.sum()), int(units[above].sum()), float(following), tied

    def count(self, count: Count, is_weighed: bool, shard: int) -> np.ndarray:
        """Call *count* with the negative values, and how much each counts if *is_weighed*."""
        units = read_tokens(self.run, shard) if is_weighed and self.in_tokens else None
        return count(-self._values(shard), units)

    def _values(self, shard: int) -> np.ndarray:
        if self.by_quality:
            return np.asarray(read_survivors(self.run, shard, ["quality"])["quality"])
        return np.asarray(read_columns(self.run.path("learning", shard), ["logit"])["logit"])


def midway(last: float | None, following: float | None) -> float:
    """Between the last logit that is kept and the next one; 1 beyond the only one."""
    if last is None:
        return 0.0 if following is None else following + 1
    return last - 1 if following is None else (last + following) / 2
