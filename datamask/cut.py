"""Stage `cut`: one threshold over all shards, where documents of different shards are compared.

Documents are kept in order of higher logit, higher quality, smaller id, until the budget is met: to
the document, or for a budget of tokens within one. With limits, each group has a threshold of its
own: its first documents up to its floor are in, those beyond its cap are out, and the order decides
about all others. That is the best selection there is by this order. What is kept of a group is
always a prefix of it, so the last kept document says it all, and a shard can be cut without
looking at the others.

DuckDB does it out of core. It never sorts the corpus: counts by the logit's whole and binary
fraction find the narrow band in which the threshold is, and only that is looked at closely.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from datamask import budget, schemas
from datamask.config import Compute, Selection
from datamask.errors import SettingsError
from datamask.out_of_core import temporary_duckdb
from datamask.store import Receipt, Run, read_columns, write_parquet

logger = logging.getLogger(__name__)

BAND = 1 / 256
FARTHEST = 2**20
"""Bands of logits have this width; beyond ±`FARTHEST` they are one."""

ROWS_AT_ONCE = 65_536


@dataclass(frozen=True, slots=True)
class Bounds:
    """Least and most of a group, in documents or tokens."""

    floor: int
    cap: int


def group_bounds(selection: Selection, total: int, name: str | None) -> Bounds | None:
    """The limits of a group by its name; None where there are none.

    Args:
        selection: with its limits.
        total: the whole budget, in documents or tokens.
        name: the group's dump, language or domain; documents without one are in no group.
    """
    for limit in sorted(selection.limits, key=lambda limit: limit.value is None):
        if name is not None and limit.value in (name, None):
            return Bounds(round(limit.floor * total), round(limit.cap * total))
    return None


def check_limits(selection: Selection, total: int, found: Mapping[str | None, int]) -> None:
    """Whether floors and caps can be kept.

    Args:
        selection: with its limits.
        total: the whole budget, in documents or tokens.
        found: documents or tokens that there are of each group.

    Raises:
        SettingsError: a group has less than its floor, the floors are more than the budget (small
            budgets, by rounding), or the caps leave less.
    """
    unit = "tokens" if selection.tokens is not None else "documents"
    named = [group_bounds(selection, total, limit.value) for limit in selection.limits]
    least = sum(bounds.floor for bounds in named if bounds is not None)
    if least > total:
        raise SettingsError(
            f"selection.limits: the floors add up to {least} {unit}, {total} are to be kept; lower "
            "them"
        )
    for limit in selection.limits:
        there = found.get(limit.value, 0)
        bounds = group_bounds(selection, total, limit.value)
        if bounds is not None and there < bounds.floor:
            raise SettingsError(
                f"selection.limits: the floor of {limit.column} {limit.value} asks for "
                f"{bounds.floor} {unit}, only {there} are left of it; lower the floor"
            )
    most = 0
    for name, there in found.items():
        bounds = group_bounds(selection, total, name)
        most += there if bounds is None else min(there, bounds.cap)
    if most < total:
        raise SettingsError(
            f"selection.limits: the caps leave {most} {unit}, {total} are to be kept; raise them"
        )


def cut(run: Run, compute: Compute) -> None:
    """Write `cut.parquet`: the last document that is kept, of the corpus or of each limited group.

    The receipt's figures: `budget`, `unit` (documents or tokens), `units` (what is kept, in that
    unit), `selected`: documents that each shard keeps, and in scope `corpus` `top_quality`: quality
    and id of the last of as many documents with the highest quality (null if nothing is kept).

    Raises:
        RunError: a shard's logits or quality are missing or stale.
        SettingsError: limits cannot be kept.
    """
    with temporary_duckdb(run.root, compute) as connection:
        _load(connection, run)
        selection = run.settings.selection
        total = budget.total_units(selection, run.num_documents)
        rows = cut_table(connection, selection, total)
        table = pa.Table.from_pylist(rows, schema=schemas.CUT)
        selected = dict(
            connection.execute("SELECT shard, count(*) FROM kept GROUP BY shard").fetchall()
        )
        best = None
        if selection.scope == "corpus" and selected:
            # What quality alone would keep of the corpus, for comparison: its last document.
            best = connection.execute(
                "SELECT quality, id FROM candidates ORDER BY quality DESC, id LIMIT 1 OFFSET ?",
                [sum(selected.values()) - 1],
            ).fetchone()
    figures = {
        "budget": total,
        "unit": "documents" if selection.tokens is None else "tokens",
        "units": sum(row["units"] for row in rows),
        "selected": [selected.get(shard, 0) for shard in range(run.num_shards)],
        "top_quality": best,
    }
    logger.info("cut: %d of %d %s", figures["units"], total, figures["unit"])

    def made(rows: int) -> Receipt:
        return run.make_receipt("cut", 0, rows, figures)

    write_parquet(run.path("cut"), schemas.CUT, [table], made, root=run.root)


def _load(connection: Any, run: Run) -> None:
    """Table `candidates`: shard, name (group or null), logit, quality, id, units."""
    selection = run.settings.selection
    unit = "1" if selection.tokens is None else "s.tokens"
    name = f's."{selection.limits[0].column}"' if selection.limits else "NULL"
    needs_facts = selection.tokens is not None or bool(selection.limits)
    facts = "JOIN read_parquet($scores) s ON q.row = s.row" if needs_facts else ""
    connection.execute(
        "CREATE TABLE candidates (shard INTEGER, name VARCHAR, logit FLOAT, quality DOUBLE, "
        "id VARCHAR, units BIGINT)"
    )
    for shard in range(run.num_shards):
        run.receipt("logits", shard)
        run.receipt("quality", shard)
        paths = {stage: str(run.path(stage, shard)) for stage in ("logits", "quality")}
        if needs_facts:
            paths["scores"] = str(run.path("scores", shard))
        connection.execute(
            f"INSERT INTO candidates SELECT $shard::INTEGER, {name}, l.logit, q.quality, q.id, "
            f"{unit} FROM read_parquet($logits) l JOIN read_parquet($quality) q "
            f"ON l.chunk_id = q.id {facts} WHERE q.dropped IS NULL",
            {"shard": shard, **paths},
        )


_ORDER = "logit DESC, quality DESC, id"


def cut_table(connection: Any, selection: Selection, total: int) -> list[dict[str, Any]]:
    """Cut the table `candidates`; what is kept of it is the view `kept` afterwards.

    Args:
        connection: DuckDB, with `candidates` (shard, name, logit, quality, id, units).
        selection: with its limits; whether the budget is in tokens.
        total: the budget, in the unit of `units`.

    Returns:
        Rows of `schemas.CUT`.

    Raises:
        SettingsError: limits cannot be kept.
    """
    if not selection.limits:
        last = _last_within(connection, "candidates", total)
        kept = _is_kept(last)
        connection.execute(f"CREATE TEMP VIEW kept AS SELECT * FROM candidates WHERE {kept}")
        documents, units = connection.execute(
            "SELECT count(*), coalesce(sum(units), 0)::BIGINT FROM kept"
        ).fetchone()
        return [_row(None, last, documents, units)]
    return _cut_groups(connection, selection, total)


Key = tuple[float, float, str]
NOTHING: Key = (float("inf"), 0.0, "")
"""The key before the first document: nothing is kept."""


def _row(name: str | None, last: Key, documents: int, units: int) -> dict[str, Any]:
    values = (name, *last, documents, int(units))
    return dict(zip(schemas.CUT.names, values, strict=True))


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _is_kept(last: Key) -> str:
    """SQL: whether a document comes at or before *last* in the order."""
    if last == NOTHING:
        return "false"
    logit, quality = f"{last[0]!r}::FLOAT", f"{last[1]!r}::DOUBLE"
    return (
        f"(logit > {logit} OR (logit = {logit} AND (quality > {quality} OR (quality = {quality} "
        f"AND id <= {_literal(last[2])}))))"
    )


def _last_within(connection: Any, table: str, total: int) -> Key:
    """The last document of a table that is needed to reach *total*; all of it is enough for it."""
    if total <= 0:
        return NOTHING
    band = f"floor(greatest(-{FARTHEST}, least({FARTHEST}, logit)) / {BAND!r})::BIGINT"
    bands = connection.execute(
        f"SELECT {band} AS band, sum(units)::BIGINT FROM {table} GROUP BY band ORDER BY band DESC"
    ).fetchall()
    # All bands above the one in which the total is reached are kept whole.
    left, last = total, NOTHING
    above = 0
    while above < len(bands) - 1 and bands[above][1] < left:
        left -= bands[above][1]
        above += 1
    place = bands[above][0] if bands else 0
    rows = connection.execute(
        f"SELECT logit, quality, id, units FROM {table} WHERE {band} = {place} ORDER BY {_ORDER}"
    )
    while batch := rows.fetchmany(ROWS_AT_ONCE):
        for logit, quality, name, units in batch:
            left, last = left - units, (logit, quality, name)
            if left <= 0:
                return last
    return last


def _cut_groups(connection: Any, selection: Selection, total: int) -> list[dict[str, Any]]:
    """The same with limits; rows for every limited group that there is, and one for the rest."""
    found = {
        name: int(units)
        for name, units in connection.execute(
            "SELECT name, sum(units) FROM candidates GROUP BY name"
        ).fetchall()
    }
    check_limits(selection, total, found)
    connection.execute("CREATE TEMP TABLE bounds (name VARCHAR, floor BIGINT, cap BIGINT)")
    limited = {
        name: bounds
        for name in found
        if (bounds := group_bounds(selection, total, name)) is not None
    }
    rows = [(name, bounds.floor, bounds.cap) for name, bounds in limited.items()]
    schema = pa.schema([("name", pa.string()), ("floor", pa.int64()), ("cap", pa.int64())])
    given = pa.Table.from_pylist(
        [dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema
    )
    connection.register("given", given)
    connection.execute("INSERT INTO bounds SELECT * FROM given")
    # How far each limited document is into its group; ids settle what would be a tie.
    connection.execute(
        "CREATE TEMP TABLE ranked AS SELECT shard, name, logit, quality, id, units, "
        f"upto <= cap AS allowed, upto - units < floor AS forced, place FROM (SELECT *, "
        f"sum(units) OVER (PARTITION BY name ORDER BY {_ORDER} ROWS UNBOUNDED PRECEDING)::BIGINT "
        f"AS upto, row_number() OVER (PARTITION BY name ORDER BY {_ORDER}) AS place "
        "FROM candidates JOIN bounds USING (name))"
    )
    connection.execute(
        "CREATE TEMP VIEW open AS SELECT logit, quality, id, units FROM ranked "
        "WHERE allowed AND NOT forced UNION ALL SELECT logit, quality, id, units "
        "FROM candidates ANTI JOIN bounds USING (name)"
    )
    forced = _one(connection, "SELECT coalesce(sum(units), 0)::BIGINT FROM ranked WHERE forced")
    last = _last_within(connection, "open", total - forced)
    kept = f"forced OR (allowed AND {_is_kept(last)})"
    connection.execute(
        f"CREATE TEMP VIEW kept AS SELECT shard, units FROM ranked WHERE {kept} UNION ALL "
        f"SELECT shard, units FROM candidates ANTI JOIN bounds USING (name) WHERE {_is_kept(last)}"
    )
    table = [
        _row(name, (logit, quality, place), documents, units)
        for name, logit, quality, place, documents, units in connection.execute(
            "SELECT name, arg_max(logit, place), arg_max(quality, place), arg_max(id, place), "
            f"count(*), sum(units)::BIGINT FROM ranked WHERE {kept} GROUP BY name ORDER BY name"
        ).fetchall()
    ]
    none = sorted(set(limited) - {row["group"] for row in table})
    table += [_row(name, NOTHING, 0, 0) for name in none]
    documents, units = connection.execute(
        "SELECT count(*), coalesce(sum(units), 0)::BIGINT FROM candidates "
        f"ANTI JOIN bounds USING (name) WHERE {_is_kept(last)}"
    ).fetchone()
    return [*table, _row(None, last, documents, units)]


def _one(connection: Any, query: str) -> int:
    return int(connection.execute(query).fetchone()[0])


def kept_of_shard(
    run: Run, shard: int, logits: np.ndarray, quality: np.ndarray, ids: np.ndarray
) -> np.ndarray:
    """Which documents of a shard the cut keeps; bool, shape N.

    Args:
        run: the run, its cut done.
        shard: the shard.
        logits: float32, of the documents that went to the learner, in the source's order.
        quality: float64, in the same order.
        ids: their ids.

    Raises:
        RunError: the cut is missing or stale.
    """
    run.receipt("cut")
    table = read_columns(run.path("cut")).to_pylist()
    rows = {row["group"]: row for row in table}
    groups: list[str | None] = [None] * len(ids)
    limits = run.settings.selection.limits
    if limits:
        facts = read_columns(run.path("scores", shard), ["id", limits[0].column]).to_pydict()
        by_id = dict(zip(facts["id"], facts[limits[0].column], strict=True))
        groups = [by_id[name] if by_id[name] in rows else None for name in ids]
    last = [rows[group] for group in groups]
    last_logit = np.asarray([row["logit"] for row in last], np.float32)
    last_quality = np.asarray([row["quality"] for row in last])
    # DuckDB compares text by its bytes in UTF-8, as Python does by code points: the same order.
    not_after = np.asarray([name <= row["id"] for name, row in zip(ids, last, strict=True)], bool)
    ties = (logits == last_logit) & (
        (quality > last_quality) | (quality == last_quality) & not_after
    )
    kept: np.ndarray = (logits > last_logit) | ties
    return kept
