"""Normalise the scores of all documents, add them up, and find documents to drop before pruning.

Normalisations: `rank` is the fraction of documents with a smaller value, averaged over ties, in [0,
1); `z-score` has mean 0 and deviation 1; `min-max` is in [0, 1]; `none` is the value. DuckDB
compares all documents outside memory: texts by their hash, values by their rank, groups by name.

No result depends on the order of rows, and so on threads: counts and sums of groups are whole
numbers, means and deviations come from the receipts in the order of shards, and all else is
computed document by document.

Stage `quality` goes on from this table (`quality.dropping`). With near-duplicates, stage `combined`
writes a part of it first, because only documents that are not dropped yet are compared.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import pyarrow as pa

from datamask.config.compute import Compute
from datamask.config.scores import Score
from datamask.hygiene.contamination import find_contaminated
from datamask.quality.grouping import (
    create_groups,
    favoured_kinds,
    group_columns,
    group_kinds,
    is_in,
    mixed_with_groups,
    standing,
)
from datamask.quality.held_out import is_drawn
from datamask.quality.moments import scale_of
from datamask.runs import schemas
from datamask.runs.in_progress import advance
from datamask.runs.output import write_output
from datamask.runs.run import Run
from datamask.selection.model_file import judged_by
from datamask.storage.duckdb_scratch import SHARD_OF_FILE, execute, stream, temporary_duckdb

logger = logging.getLogger(__name__)

QUANTILES = 1024
"""Resolution of the ranks that are kept for documents of later runs: 1/1024."""

Scales = dict[str, list[Any]]
"""Numbers that normalise the scores of later documents, by name: offset and divisor or, for
normalisation `rank`, values and their ranks, ascending, at most 1025 of each."""


def combine(run: Run, compute: Compute) -> None:
    """Write `combined/`: quality and reasons before near-duplicates; errors: `join_documents`."""
    with temporary_duckdb(run.root, compute) as connection:
        join_documents(connection, run, judged_by(run))
        write_shards(connection, run, "combined", "joined", schemas.COMBINED)


def join_documents(connection: Any, run: Run, about: dict[str, Any] | None) -> Scales:
    """Make table `joined`: every document, its scores, and the reason to drop it before pruning.

    It has shard, row, id, characters, tokens, `standing` among copies, the normalised scores,
    `quality`, `reason` and the columns of contamination; with scores normalised within groups also
    `whole_quality`, the quality without groups, and the groups g_<kind>. The view `documents` has
    the raw scores.

    Returns the scales, of the run or of the mask model that judges it (*about*). Refuses values
    that are too large.
    """
    scores = run.settings.scores
    receipts = [run.receipt("scores", shard) for shard in range(run.num_shards)]
    known = about["normalisation"] if about else {}
    kinds = [*group_kinds(scores), *favoured_kinds(run.settings.quality)]
    load_documents(connection, run, list(dict.fromkeys(kinds)))
    scales: Scales = {}
    wholes: list[str] = []
    for index, score in enumerate(scores):
        if score.normalisation == "rank":
            scales[score.name] = _rank(connection, index, score, known.get(score.name))
            wholes.append(f"rank{index}.share")
            continue
        offset, divisor = known.get(score.name) or scale_of(run, receipts, score)
        if score.normalisation != "none":
            scales[score.name] = [offset, divisor]
        wholes.append(f"({value_of(score)} - {double(offset)}) / {double(divisor)}")
    _find_copies(connection, run)
    find_contaminated(connection, run)
    _join(connection, run, wholes)
    for group in run.settings.quality.favoured:
        if not execute(connection, f"SELECT 1 FROM documents s WHERE {is_in(group)} LIMIT 1"):
            text = "quality.near_duplicates: no document has %s `%s`; check the name"
            logger.warning(text, group.column, group.value)
    return scales


def write_shards(
    connection: Any,
    run: Run,
    stage: str,
    table: str,
    schema: pa.Schema,
    metrics: Callable[[int], dict[str, Any]] = lambda shard: {},
) -> None:
    """Write the missing files of a stage from a table with the columns, shard and row."""
    columns, remaining = ", ".join(f'"{name}"' for name in schema.names), run.remaining(stage)
    for done, shard in enumerate(remaining):
        query = f"SELECT {columns} FROM {table} WHERE shard = {shard} ORDER BY row"
        batches = (batch.cast(schema) for batch in stream(connection, query))
        receipt = write_output(run, stage, shard, schema, batches, metrics(shard))
        assert receipt.rows == run.shard_rows(shard)
        advance(done + 1, len(remaining), "shards")


def value_of(score: Score) -> str:
    """Return SQL for the raw value of a score in a row s of `documents`, null if missing."""
    # Score names match [a-z][a-z0-9_]* (config.Score), so they are safe as identifiers.
    if score.filled is None:
        return f's."{score.name}"'
    return f'coalesce(s."{score.name}", {double(score.filled + 0.0)})'


def double(value: float) -> str:
    """Return SQL for exactly this number."""
    return f"'{value!r}'::DOUBLE"


def load_documents(connection: Any, run: Run, kinds: list[str]) -> None:
    """Make view `documents`: the facts of all shards, with shard and the groups g_<kind>."""
    scores = facts_of(connection, run, kinds)
    columns, joins = group_columns(connection, run, kinds)
    execute(connection, f"CREATE VIEW documents AS SELECT s.*{columns} FROM {scores} s {joins}")


def facts_of(connection: Any, run: Run, kinds: Collection[str]) -> str:
    """Return SQL for the `scores` of all shards, with groups of *kinds* that the user named."""
    scores = rows_of(connection, run, "scores")
    own = [f'g."{kind}"' for kind in run.settings.source.groups if kind in kinds]
    if not own:
        return scores
    groups = rows_of(connection, run, "groups")
    return f"(SELECT s.*, {', '.join(own)} FROM {scores} s JOIN {groups} g USING (shard, row))"


def rows_of(connection: Any, run: Run, stage: str) -> str:
    """Return SQL for the rows of a stage's files of all shards, with their shard."""
    paths = [str(run.path(stage, shard)) for shard in range(run.num_shards)]
    execute(connection, f"SET VARIABLE {stage} = ?", [paths])
    files = f"read_parquet(getvariable('{stage}'), hive_partitioning = false, filename = true)"
    return f"(SELECT {SHARD_OF_FILE} AS shard, * FROM {files})"


def _rank(
    connection: Any, index: int, score: Score, known: list[list[float]] | None
) -> list[list[float]]:
    """Make table `rank<index>`: each value of a score, and the fraction of documents below it.

    The fraction is (2 x smaller + equal - 1) / (2 x all) or, with *known* values and fractions,
    interpolated between these. Returns values and fractions for documents of later runs.
    """
    counted = (
        f"SELECT {value_of(score)} AS value, count(*) AS equal FROM documents s "
        f"WHERE {value_of(score)} IS NOT NULL GROUP BY ALL"
    )
    share = (
        "(2 * sum(equal) OVER (ORDER BY value ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) "
        "- equal - 1)::DOUBLE / (2 * sum(equal) OVER ())::DOUBLE"
    )
    if known:
        share = f"known{index}(value)"
        connection.create_function(
            f"known{index}",
            lambda values: pa.array(np.interp(values.to_numpy(), known[0], known[1])),
            ["DOUBLE"],
            "DOUBLE",
            type="arrow",
        )
    execute(
        connection, f"CREATE TABLE rank{index} AS SELECT value, {share} AS share FROM ({counted})"
    )
    points = execute(
        connection,
        f"SELECT floor(share * {QUANTILES})::INT, min(value), min(share) FROM rank{index} "
        f"GROUP BY ALL UNION ALL SELECT {QUANTILES}, max(value), max(share) FROM rank{index} "
        "HAVING count(*) > 0 ORDER BY 1, 2",
    )
    return known or [[value for _, value, _ in points], [share for *_, share in points]]


def _find_copies(connection: Any, run: Run) -> None:
    """Make table `copies`: documents whose text is held out, or occurs earlier in the source.

    A copy in a preferred group is kept rather than an earlier one in another group (`standing`).
    The `copy` is `held_out` or `duplicate`. A document without a score is dropped itself, so others
    are not dropped in its favour.
    """
    settings = run.settings
    scored = " AND ".join(
        f's."{score.name}" IS NOT NULL' for score in settings.scores if score.filled is None
    )
    order = f"({standing(settings.quality)}::HUGEINT << 96) | (shard::HUGEINT << 64) | row::HUGEINT"
    drops = settings.quality.duplicates == "drop"
    if not (drops or settings.evaluation.hold_out):
        execute(connection, "CREATE TABLE copies (shard INT, row BIGINT, copy VARCHAR)")
        return
    execute(
        connection,
        f"CREATE TABLE copies AS WITH texts AS (SELECT shard, row, content, {order} AS precedence, "
        f"{is_drawn(settings)} AS drawn, {scored or 'true'} AS scored FROM documents s "
        "WHERE content IS NOT NULL AND characters > 0), repeated AS (SELECT content, "
        "bool_or(drawn) AS held_out, min(precedence) FILTER (scored) AS first FROM texts "
        "GROUP BY content HAVING count(*) > 1 OR held_out) SELECT shard, row, CASE WHEN held_out "
        f"THEN 'held_out' WHEN {drops} AND scored AND first <> precedence THEN 'duplicate' END "
        "AS copy FROM texts JOIN repeated USING (content) WHERE copy IS NOT NULL",
    )


def _join(connection: Any, run: Run, wholes: list[str]) -> None:
    """Make table `joined`; *wholes* are SQL for the scores normalised over the corpus."""
    settings, scores = run.settings, run.settings.scores
    kinds = group_kinds(scores)
    columns = ["s.shard", "s.row", "s.id", "s.characters", "s.tokens"]
    columns.append(f"{standing(settings.quality)} AS standing")
    joins = [
        f"LEFT JOIN {table} ON {table}.shard = s.shard AND {table}.row = s.row"
        for table in ("copies", "contaminated")
    ]
    total = whole_total = "0.0"
    for index, (score, whole) in enumerate(zip(scores, wholes, strict=True)):
        normalised, value = whole, value_of(score)
        if score.normalisation == "rank":
            joins.append(f"LEFT JOIN rank{index} ON rank{index}.value = {value}")
        if score.normalise_within != "none":
            create_groups(connection, index, score, value)
            normalised, joined = mixed_with_groups(index, score, value, whole)
            joins += joined
        columns.append(f'{normalised} AS "{score.name}"')
        total += f" + {double(score.weight)} * ({normalised})"
        whole_total += f" + {double(score.weight)} * ({whole})"
    columns.append(f"{total} + 0.0 AS quality")
    if kinds:
        columns.append(f"{whole_total} + 0.0 AS whole_quality")
        columns += [f"s.g_{kind}" for kind in kinds]
    columns += schemas.CONTAMINATION.names
    contamination = settings.quality.contamination
    drops = "false"
    if contamination and contamination.action == "drop":
        drops = "contaminated_by IS NOT NULL"
    elif contamination and contamination.action == "drop_covered":
        drops = f"contaminated_share >= {double(contamination.covered)}"
    long = run.receipt("scores", 0).metrics["long"]
    too_long = f"s.characters > {long['bound']}" if long["policy"] == "drop" else "false"
    columns.append(
        f"CASE WHEN s.characters = 0 THEN 'empty' WHEN {too_long} THEN 'too_long' "
        f"WHEN copy = 'held_out' OR {is_drawn(settings)} THEN 'held_out' "
        f"WHEN ({total}) IS NULL THEN 'missing-score' WHEN copy = 'duplicate' THEN 'duplicate' "
        f"WHEN {drops} THEN 'contaminated' END AS reason"
    )
    execute(
        connection,
        f"CREATE TABLE joined AS SELECT {', '.join(columns)} FROM documents s "
        f"{' '.join(joins)} ORDER BY s.shard, s.row",
    )
