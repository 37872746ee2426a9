"""Stage `threshold`: one threshold over all shards, where their documents are compared.

Documents are kept in the order of higher logit, higher quality, smaller id, until the budget is
reached: exactly in documents; in tokens, the document that reaches it is the last one.

With limits, the documents of every group with a floor or cap are first taken in this order. A
document that does not fit into the rest of its group's cap is skipped, and later documents that fit
are taken. Documents taken before the floor is reached are kept in any case. The order then decides
on the other documents that were taken, and on groups without limits, until the budget is reached.

In tokens, the documents that cross the floors of their groups are left to the order if all of them
together would exceed the budget. So caps are never exceeded, and floors are met, in tokens within
one document. `threshold.parquet` (`schemas.CUT`) is all that a shard needs to apply it: for each
group, the last document that is kept before the first that did not fit, and ids of the few after
it.

DuckDB holds the documents of all shards out of core.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from datamask.config.compute import Compute
from datamask.config.selection import AND, NO_GROUP, QUALITY_BANDS, Selection
from datamask.errors import together
from datamask.runs import budget, schemas
from datamask.runs.in_progress import each_in_turn
from datamask.runs.output import write_output
from datamask.runs.run import Run
from datamask.selection.documents import read_candidates, read_survivors
from datamask.selection.order import NOTHING, ORDER, Key, is_kept, midway, not_after
from datamask.storage.duckdb_scratch import (
    execute,
    execute_with,
    last_within,
    temporary_duckdb,
    value_at,
)

logger = logging.getLogger(__name__)

OTHERS = "(others)"
"""Name of the documents that no limit of a column concerns."""

_COUNTS = "count(*), coalesce(sum(units), 0)::BIGINT"


def cut(run: Run, compute: Compute) -> None:
    """Write `threshold.parquet`: what is kept of the corpus, or of each limited group.

    The metrics of the receipt: `budget`, `unit` (documents or tokens), `units` (what is kept, in
    that unit), `threshold` (midway between the logits of the last document that the order kept and
    the next one) and `selected` (documents that each shard keeps). In scope `corpus` also
    `top_quality`: quality and id of the last document if quality alone had kept as many, null if
    nothing is kept.

    Raises:
        SettingsError: the corpus has less than the budget, or limits cannot be met or name unknown
            topics.
    """
    selection = run.settings.selection
    if "topic" in selection.limited:
        from datamask.selection.topics import unknown_topics  # This imports torch.

        if unknown := unknown_topics(run):
            raise together(unknown)
    survivors = budget.Survivors.of(run.receipt("quality", 0).metrics)
    total = budget.corpus_units(selection, run.num_documents, survivors)
    rows, metrics = find_cut(run, compute, total)
    logger.info("threshold: %d of %d %s kept", metrics["units"], total, metrics["unit"])
    table = pa.Table.from_pylist(rows, schema=schemas.CUT)
    write_output(run, "threshold", 0, schemas.CUT, [table], metrics)


def find_cut(run: Run, compute: Compute, total: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the rows of `cut_table` for the documents of all shards, and the metrics of `cut`."""
    selection = run.settings.selection
    limited = [f'"{name}" VARCHAR' for name in selection.limited if name != "quality"]

    def candidates(shard: int) -> pa.Table:
        return read_candidates(run, read_survivors(run, shard))

    with temporary_duckdb(run.root, compute) as connection:
        execute(
            connection,
            "CREATE TABLE every (logit FLOAT, quality DOUBLE, id VARCHAR, units BIGINT, "
            f"{', '.join([*limited, 'shard INTEGER'])})",
        )
        for table in each_in_turn(candidates, range(run.num_shards), compute.workers, "shards"):
            execute_with(connection, table, "INSERT INTO every BY NAME FROM arriving")
        edges = quality_edges(connection, selection, "every")
        name = name_of(selection, "every", edges)
        execute(connection, f"CREATE VIEW candidates AS SELECT *, {name} AS name FROM every")
        rows, metrics = cut_table(connection, selection, total)
        counts = dict(execute(connection, "SELECT shard, count(*) FROM kept GROUP BY 1"))
        best = None
        if selection.scope == "corpus" and counts:
            # The last document that quality alone would keep in the corpus, for comparison.
            every = "(SELECT quality, id, 1 AS units FROM candidates)"
            best = last_within(connection, every, sum(counts.values()), "quality DESC, id")
    metrics |= {"quality_edges": edges} if edges else {}
    return rows, metrics | {
        "budget": total,
        "unit": "documents" if selection.tokens is None else "tokens",
        "units": sum(row["units"] for row in rows),
        "selected": [counts.get(shard, 0) for shard in range(run.num_shards)],
        "top_quality": best,
    }


def group_column(column: str, table: str) -> str:
    """Return SQL for the name of a document's group."""
    return f"coalesce({table}.\"{column}\", '{NO_GROUP}')"


def quality_edges(connection: Any, selection: Selection, rows: str) -> list[float]:
    """Return the largest quality of each band but the highest; none without limits of quality.

    *rows* is SQL for FROM: the candidates.
    """
    if "quality" not in selection.limited:
        return []
    [(number,)] = execute(connection, f"SELECT count(*) FROM {rows}")
    lasts = [max(0, band * number // QUALITY_BANDS - 1) for band in range(1, QUALITY_BANDS)]
    return [value_at(connection, "quality", rows, last) for last in lasts]


def name_of(selection: Selection, table: str, edges: Sequence[float] = ()) -> str:
    """Return SQL for the name of a document's group by all limited columns; '' without limits.

    Groups that no limit concerns are `OTHERS`. *edges* come from `quality_edges`.
    """
    names = []
    for column in selection.limited:
        name = group_column(column, table)
        if column == "quality":
            above = (f"(quality > '{edge!r}'::DOUBLE)::INT" for edge in edges)
            name = f"({' + '.join(['1', *above])})::VARCHAR"
        if all(limit.value is not None for limit in selection.limits if column in limit.columns):
            known = (text.replace("'", "''") for text in selection.named_groups(column))
            quoted = ", ".join(f"'{text}'" for text in known)
            name = f"if({name} IN ({quoted}), {name}, '{OTHERS}')"
        names.append(name)
    if len(names) > 1:
        names = [f"replace({name}, '{AND}', '*')" for name in names]
    return f"concat_ws('{AND}', {', '.join(names)})" if names else "''"


def check_limits(connection: Any, selection: Selection, total: int) -> dict[str, int]:
    """Make table `bounds` (name, floor, cap) of limited groups or cells; return caps by name.

    `candidates` names the groups: it has the columns name and units.

    Raises:
        SettingsError: the limits cannot be met.
    """
    names = [name for (name,) in execute(connection, "SELECT DISTINCT name FROM candidates")]
    bounds_of = budget.group_bounds(selection, total, names)
    rows = [{"name": name, "floor": floor, "cap": cap} for name, (floor, cap) in bounds_of.items()]
    schema = pa.schema([("name", pa.string()), ("floor", pa.int64()), ("cap", pa.int64())])
    given = pa.Table.from_pylist(rows, schema=schema)
    execute_with(connection, given, "CREATE TEMP TABLE bounds AS FROM arriving")
    units = execute(
        connection,
        "SELECT name, sum(units)::BIGINT FROM candidates LEFT JOIN bounds USING (name) "
        "WHERE cap IS NULL OR units <= cap GROUP BY name",
    )
    groups = dict.fromkeys(names, 0) | dict(units)
    if selection.limits and (problems := list(budget.limit_problems(selection, total, groups))):
        raise together(problems)
    return {name: cap for name, (_, cap) in bounds_of.items()}


def cut_table(
    connection: Any, selection: Selection, total: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Apply budget and limits to `candidates`.

    Makes the view `kept`, of the documents.

    Args:
        connection: DuckDB, with `candidates` (shard, name, logit, quality, id, units).
        selection: limits, and the unit of the budget.
        total: the budget, in the unit of `units`.

    Returns:
        Rows of `schemas.CUT`: one per limited group that exists, and a last one for the rest; and
        the metric `threshold` (`cut`) or, with cells, the metrics of `cut_cells`.

    Raises:
        SettingsError: limits cannot be met, or leave too few tokens.
    """
    caps = check_limits(connection, selection, total)
    if selection.has_cells:
        from datamask.selection.cells import cut_cells  # This imports scipy.

        caps, metrics = cut_cells(connection, selection, total)
        return [*_rows(connection, caps), _row(None, None, NOTHING, 0, 0, [])], metrics
    _walk_groups(connection)
    ((forced, crossing),) = execute(
        connection,
        "SELECT coalesce(sum(units) FILTER (forced), 0)::BIGINT, "
        "coalesce(sum(units) FILTER (forced AND upto > floor), 0)::BIGINT FROM allowed",
    )
    is_forced = "forced"
    if forced > total:
        is_forced, forced = "(forced AND upto <= floor)", forced - crossing
    columns = "shard, name, logit, quality, id, units, place, beyond"
    connection.execute(
        f"CREATE TEMP VIEW ordered AS SELECT {columns} FROM allowed WHERE NOT {is_forced} UNION "
        "ALL SELECT shard, name, logit, quality, id, units, 0, false FROM candidates "
        "ANTI JOIN bounds USING (name)"
    )
    last = last_within(connection, "ordered", total - forced, ORDER) or NOTHING
    connection.execute(f"CREATE TEMP VIEW open AS SELECT *, {is_kept(last)} AS kept FROM ordered")
    connection.execute(
        f"CREATE TEMP VIEW kept AS SELECT {columns} FROM allowed WHERE {is_forced} UNION ALL "
        f"SELECT {columns} FROM open WHERE kept"
    )
    table = _rows(connection, caps)
    counts = f"SELECT {_COUNTS} FROM kept ANTI JOIN bounds USING (name)"
    ((documents, units),) = execute(connection, counts)
    table.append(_row(None, None, last, documents, units, []))
    kept = sum(row["units"] for row in table)
    skipped = "SELECT max(units) FROM ranked ANTI JOIN allowed USING (name, place)"
    if (
        selection.limits
        and kept < total
        and total - kept >= (execute(connection, skipped)[0][0] or 0)
    ):
        raise budget.too_little(selection, kept, total, caps)
    # The least logit that the order kept, and the next; None if there is none.
    both = "min(logit) FILTER (kept)::DOUBLE, max(logit) FILTER (NOT kept)::DOUBLE"
    [(least, following)] = execute(connection, f"SELECT {both} FROM open")
    return table, {"threshold": midway(least, following)}


def _rows(connection: Any, caps: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the rows of `schemas.CUT` of limited groups, from the view `kept`."""
    rows = {
        name: _row(name, caps[name], tuple(key), documents, units, beyond or [])
        for name, *key, documents, units, beyond in execute(
            connection,
            "SELECT name, arg_max(logit, place) FILTER (NOT beyond), arg_max(quality, place) "
            f"FILTER (NOT beyond), arg_max(id, place) FILTER (NOT beyond), {_COUNTS}, "
            "list(id ORDER BY place) FILTER (beyond) "
            "FROM kept SEMI JOIN bounds USING (name) GROUP BY name",
        )
    }
    return [rows.get(name) or _row(name, caps[name], NOTHING, 0, 0, []) for name in sorted(caps)]


def _row(
    name: str | None, cap: int | None, last: Key, documents: int, units: int, beyond: list[str]
) -> dict[str, Any]:
    values = (name, cap, *last, beyond, documents, units)
    return dict(zip(schemas.CUT.names, values, strict=True))


def _walk_groups(connection: Any) -> None:
    """Make the view `allowed`: documents of limited groups that fit; `upto` counts units.

    Each pass takes documents until one does not fit; the next continues with those short enough for
    the rest of the cap, which is below the length of that document. Passes are therefore few, and
    all but the first see few documents. In documents there is only one pass.
    """
    connection.execute(
        "CREATE TEMP TABLE ranked AS SELECT shard, name, logit, quality, id, units, "
        f"sum(units) OVER (PARTITION BY name ORDER BY {ORDER} ROWS UNBOUNDED PRECEDING)::BIGINT "
        f"AS upto, row_number() OVER (PARTITION BY name ORDER BY {ORDER}) AS place "
        "FROM candidates JOIN bounds USING (name) WHERE units <= cap"
    )
    connection.execute("CREATE TEMP TABLE later (name VARCHAR, place BIGINT, upto BIGINT)")
    taken = "SELECT name, max(upto) AS taken FROM ranked JOIN bounds USING (name) WHERE upto <= cap"
    source = "ranked"
    while True:
        connection.execute(
            "CREATE OR REPLACE TEMP TABLE rest AS SELECT r.name, r.place, r.units, b.cap, "
            "t.taken + sum(r.units) OVER (PARTITION BY r.name ORDER BY r.place "
            "ROWS UNBOUNDED PRECEDING)"
            f"::BIGINT AS upto FROM {source} r JOIN bounds b USING (name) "
            f"JOIN ({taken} GROUP BY name) t USING (name) "
            "WHERE r.upto > b.cap AND r.units <= b.cap - t.taken"
        )
        fits = "INSERT INTO later SELECT name, place, upto FROM rest WHERE upto <= cap"
        if execute(connection, fits) == [(0,)]:
            break
        taken = "SELECT name, max(upto) AS taken FROM later"
        source = "rest"
    connection.execute(
        "CREATE TEMP VIEW allowed AS SELECT w.*, upto - units < floor AS forced, floor FROM ("
        "SELECT * EXCLUDE (cap, floor), false AS beyond FROM ranked JOIN bounds USING (name) "
        "WHERE upto <= cap UNION ALL SELECT r.shard, r.name, r.logit, r.quality, r.id, r.units, "
        "l.upto, r.place, true FROM ranked r JOIN later l USING (name, place)"
        ") w JOIN bounds USING (name)"
    )


def kept_of_shard(run: Run, candidates: pa.Table, compute: Compute) -> np.ndarray:
    """Say which of a shard's documents (`read_candidates`) the threshold keeps; bool, shape N."""
    edges = run.receipt("threshold").metrics.get("quality_edges", ())
    name = name_of(run.settings.selection, "arriving", edges)
    with temporary_duckdb(run.root, compute) as connection:
        made = f"CREATE TABLE candidates AS SELECT *, {name} AS name FROM arriving"
        execute_with(connection, candidates, made)
        return apply_cut(connection, run.read_output("threshold"))


def apply_cut(connection: Any, cut: pa.Table) -> np.ndarray:
    """Apply a table of `schemas.CUT` to `candidates`; bool, in their order: True if kept."""
    connection.register("cut", cut)
    # The last row of the cut, without a group, decides on groups without limits.
    kept = execute(
        connection,
        "SELECT coalesce(units <= cap, true) AND "
        f"{not_after('last_logit', 'last_quality', 'last_id')} OR list_contains(beyond, id) "
        'FROM candidates c JOIN (SELECT "group", cap, beyond, logit AS last_logit, '
        'quality AS last_quality, id AS last_id FROM cut) ON "group" IS NOT DISTINCT FROM '
        'if(name IN (SELECT "group" FROM cut), name, NULL) ORDER BY c.rowid',
    )
    return np.array([row[0] for row in kept], bool)
