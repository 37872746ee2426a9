"""Stage `comparison`: what can be known of a document only by comparing it with all others.

A copy of a text may be in any shard, and the rank of a score counts the smaller values in all of
them. So the corpus is divided into partitions: texts by the first bytes of their hash, values by
range, groups by a hash of their name. A unit reads a few columns of all shards, keeps the rows of
its partition, and answers for each shard. Counts are exact, so the number of partitions changes no
result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from datamask.config.compute import Compute
from datamask.config.inputs import Score
from datamask.quality.grouping import add_up_groups, group_expression, rank_in_groups
from datamask.quality.held_out import is_drawn
from datamask.quality.partitions import num_partitions
from datamask.quality.scales import Scale, read_scales
from datamask.runs import schemas
from datamask.runs.files import read_columns
from datamask.runs.in_progress import advance
from datamask.runs.output import write_output
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run
from datamask.storage.duckdb_scratch import (
    SHARD_OF_FILE,
    execute,
    execute_with,
    groups_of_files,
    stream,
    temporary_duckdb,
)

QUANTILES = 1024
"""Resolution of the ranks that are kept for documents of later runs: 1/1024."""


@dataclass(frozen=True, slots=True)
class _Partition:
    run: Run
    connection: Any
    unit: int
    of: int

    def load(self, table: str, columns: str, where: str, parameters: list[Any]) -> None:
        """Insert shard and *columns* of all `scores` (named s) that are in this partition."""
        number = self.run.num_shards
        for shards in groups_of_files(number):
            execute(
                self.connection,
                f"INSERT INTO {table} SELECT {SHARD_OF_FILE} AS shard, {columns} "
                f"FROM read_parquet(?, filename = true) s {where}",
                [[str(self.run.path("scores", shard)) for shard in shards], *parameters],
            )
            advance(shards.stop, number, "shards")

    def holds(self, value: str, borders: Sequence[Any]) -> tuple[str, list[Any]]:
        """SQL: whether this partition has a value, and its parameters.

        *borders* are the first values of all partitions but the first.
        """
        first, beyond = borders[: self.unit][-1:], borders[self.unit :][:1]
        conditions = [f"{value} IS NOT NULL"]
        conditions += [f"{value} >= ?"] * len(first) + [f"{value} < ?"] * len(beyond)
        return " AND ".join(conditions), [*first, *beyond]


def answer(run: Run, unit: int, compute: Compute) -> Receipt:
    """Write `comparison/NNNNN.parquet`: what each shard is to know about its documents.

    The receipt's metric `points` has, by score with normalisation `rank`, bucket, least value and
    least rank of each bucket of 1/1024 of the ranks, and the largest of both.

    Raises:
        RunError: a shard's scores are missing or stale.
    """
    for shard in range(run.num_shards):
        run.receipt("scores", shard)
    scales, scores = read_scales(run), run.settings.scores
    points: dict[str, list[list[float]]] = {}
    with temporary_duckdb(run.root, compute) as connection:
        part = _Partition(run, connection, unit, num_partitions(run.num_documents))
        empty = schemas.COMPARISON.empty_table()
        execute_with(connection, empty, "CREATE TABLE answers AS FROM arriving")
        if run.settings.quality.duplicates == "drop" or run.settings.evaluation.hold_out:
            _find_copies(part)
        for place, (score, scale) in enumerate(zip(scores, scales, strict=True)):
            if score.normalisation == "rank" and not scale.values:
                points[score.name] = _rank(part, place, score, scale)
            if score.normalise_within != "none":
                _compare_groups(part, place, score)
        rows = stream(connection, "FROM answers ORDER BY shard, kind, row, score, name, value")
        batches = (batch.cast(schemas.COMPARISON) for batch in rows)
        return write_output(
            run, "comparison", unit, schemas.COMPARISON, batches, {"points": points}
        )


def answers_for(run: Run, shard: int) -> pa.Table:
    """All rows of `schemas.COMPARISON` for a shard; none if nothing is compared."""
    parts = [schemas.COMPARISON.empty_table()]
    for unit in range(run.num_units("comparison")):
        run.receipt("comparison", unit)
        path = run.path("comparison", unit)
        parts.append(read_columns(path, filters=[("shard", "=", shard)]))
    return pa.concat_tables(parts)


def _find_copies(part: _Partition) -> None:
    """Answers `held_out`, for documents with the text of a drawn one, and `duplicate`."""
    settings, connection = part.run.settings, part.connection
    borders = [((one << 128) // part.of).to_bytes(16) for one in range(1, part.of)]
    where, parameters = part.holds("content", borders)
    # A document without a score is dropped itself, so others must not be dropped in its favour.
    scored = " AND ".join(
        f'"{score.name}" IS NOT NULL' for score in settings.scores if score.missing != "fill"
    )
    execute(
        connection,
        "CREATE TABLE texts (shard INT, row BIGINT, content BLOB, drawn BOOLEAN, scored BOOLEAN)",
    )
    columns = f"row, content, {is_drawn(settings)}, {scored or 'true'}"
    part.load("texts", columns, f"WHERE {where} AND characters > 0", parameters)
    execute(
        connection,
        "INSERT INTO answers BY NAME SELECT shard, 'held_out' AS kind, row FROM texts "
        "WHERE content IN (SELECT content FROM texts WHERE drawn)",
    )
    if settings.quality.duplicates == "drop":
        execute(
            connection,
            "WITH others AS (SELECT * FROM texts WHERE scored AND "
            "content NOT IN (SELECT content FROM texts WHERE drawn)), "
            "firsts AS (SELECT content, min(shard::HUGEINT << 64 | row::HUGEINT) AS place "
            "FROM others GROUP BY content HAVING count(*) > 1) "
            "INSERT INTO answers BY NAME SELECT shard, 'duplicate' AS kind, row "
            "FROM others JOIN firsts USING (content) "
            "WHERE place <> (shard::HUGEINT << 64 | row::HUGEINT)",
        )
    execute(connection, "DROP TABLE texts")


def _rank(part: _Partition, place: int, score: Score, scale: Scale) -> list[list[float]]:
    """Answers `rank`: for each value of a shard, (2 x smaller + equal - 1) / (2 x all)."""
    connection, value = part.connection, _value(score)
    where, parameters = part.holds(value, scale.borders)
    execute(connection, "CREATE TABLE smaller (shard INT, number BIGINT)")
    execute(connection, "CREATE TABLE found (shard INT, value DOUBLE, equal BIGINT)")
    if part.unit:
        part.load("smaller", "count(*)", f"WHERE {value} < ? GROUP BY ALL", parameters[:1])
    part.load("found", f"{value} AS value, count(*)", f"WHERE {where} GROUP BY ALL", parameters)
    execute(
        connection,
        "CREATE TABLE ranks AS WITH counts AS "
        "(SELECT value, sum(equal)::BIGINT AS equal FROM found GROUP BY value), "
        "sums AS (SELECT value, equal, CAST(sum(equal) OVER (ORDER BY value ROWS BETWEEN "
        "UNBOUNDED PRECEDING AND CURRENT ROW) AS BIGINT) AS upto FROM counts) "
        "SELECT value, CAST(2 * ((SELECT coalesce(sum(number), 0)::BIGINT FROM smaller) + upto) "
        "- equal - 1 AS DOUBLE) / CAST(2 * CAST(? AS BIGINT) AS DOUBLE) AS share FROM sums",
        [scale.count],
    )
    execute(
        connection,
        f"INSERT INTO answers BY NAME SELECT shard, 'rank' AS kind, {place} AS score, value, share "
        "FROM found JOIN ranks USING (value)",
    )
    points = execute(
        connection,
        f"SELECT floor(share * {QUANTILES})::INT, min(value), min(share) FROM ranks GROUP BY ALL "
        f"UNION ALL SELECT {QUANTILES}, max(value), max(share) FROM ranks HAVING count(*) > 0 "
        "ORDER BY 1, 2",
    )
    for table in ("smaller", "found", "ranks"):
        execute(connection, f"DROP TABLE {table}")
    return [list(point) for point in points]


def normalisation_of(run: Run) -> dict[str, Any]:
    """What normalises the scores of later documents, by name.

    Offset and divisor; for normalisation `rank`, values and their ranks, ascending, at most 1025.
    """
    found: dict[str, Any] = {}
    for score, scale in zip(run.settings.scores, read_scales(run), strict=True):
        if score.normalisation == "rank":
            known = [scale.values, scale.shares] if scale.values else _merged_points(run, score)
            found[score.name] = known
        elif score.normalisation != "none":
            found[score.name] = [scale.offset, scale.divisor]
    return found


def _merged_points(run: Run, score: Score) -> list[list[float]]:
    merged: dict[int, tuple[float, float]] = {}
    for unit in range(run.num_units("comparison")):
        # Units have ascending values: of a bucket the first is kept, and the very last.
        for bucket, value, share in run.receipt("comparison", unit).metrics["points"][score.name]:
            if bucket == QUANTILES or bucket not in merged:
                merged[bucket] = (value, share)
    columns = zip(*sorted(merged.values()), strict=True)
    return [list(column) for column in columns] or [[0.0], [0.0]]


def _compare_groups(part: _Partition, place: int, score: Score) -> None:
    """Answers `group`, size and scale of each group of a shard, and `rank_in_group`."""
    connection, value = part.connection, _value(score)
    execute(
        connection, "CREATE TABLE members (shard INT, name VARCHAR, value DOUBLE, equal BIGINT)"
    )
    for shard in range(part.run.num_shards):
        group, folders = group_expression(part.run, shard, score.normalise_within)
        execute(
            connection,
            f"INSERT INTO members SELECT {shard}, name, value, count(*) FROM "
            f"(SELECT {group} AS name, {value} AS value FROM read_parquet(?) s) "
            f"WHERE value IS NOT NULL AND md5_number_lower(name) % {part.of} = {part.unit} "
            "GROUP BY ALL",
            [*folders, str(part.run.path("scores", shard))],
        )
        advance(shard + 1, part.run.num_shards, "shards")
    add_up_groups(connection, place)
    if score.normalisation == "rank":
        rank_in_groups(connection, place)
    execute(connection, "DROP TABLE members")


def _value(score: Score) -> str:
    # Score names match [a-z][a-z0-9_]* (config.Score), so they are safe as identifiers.
    if score.missing != "fill":
        return f's."{score.name}"'
    return f"coalesce(s.\"{score.name}\", '{score.fill_value + 0.0!r}'::DOUBLE)"
