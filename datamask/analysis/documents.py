"""Stage `documents`: a shard's documents with all that is known of each, and the counts of them.

`documents/NNNNN.parquet` has a row per document. The subset, the published scores and the views
`documents` and `selection` of `datamask query` are made of these rows. What adds up over shards is
in the metrics of its receipt (documents, characters, tokens, sums and extremes of scores) and, by
group and fate, in `tallies/NNNNN.parquet`. `analysis.composition` adds it up.

Computed from `scores/`, `quality/`, `topics/` and `selection/`. Sums are of integers or on one
thread, so that equal runs give equal values.
"""

from __future__ import annotations

from typing import Any

from datamask.analysis.composition import SELECTIONS, SOURCE_KINDS
from datamask.config.compute import Compute
from datamask.config.selection import NO_GROUP
from datamask.errors import CorruptFileError
from datamask.runs import budget, schemas
from datamask.runs.files import write_parquet
from datamask.runs.output import write_output
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run
from datamask.runs.stages import companions
from datamask.selection.limits import group_column
from datamask.selection.repeats import added_repeat
from datamask.storage.duckdb_scratch import execute, stream, temporary_duckdb

_DOCUMENTS = """
CREATE TABLE documents AS WITH joined AS (
    SELECT $shard::INTEGER AS shard, s.* EXCLUDE (content) REPLACE ({groups}, {read} AS text_read),
        coalesce({topic}, '{none}') AS topic, q.quality, q.dropped, {added}, m.logit,
        coalesce(m.selected, false) AS selected
    FROM read_parquet($scores) s JOIN ({quality}) q ON s.row = q.row AND s.id = q.id
    LEFT JOIN read_parquet($selection, file_row_number = true) m
        ON m.file_row_number = if(q.dropped IS NULL, q.place, NULL) {joined}
)
SELECT *, dropped IS NULL AND {best} AS top_quality{repeat} FROM joined ORDER BY row
"""

_JOIN = """LEFT JOIN read_parquet(${0}, file_row_number = true) {0}
        ON {0}.file_row_number = m.file_row_number"""

# Masks, topics and vectors have a row per document that is not dropped, in order. A running count
# with a FILTER would take DuckDB 200 CPU seconds for a million documents.
_QUALITY = """SELECT *, row_number() OVER (PARTITION BY dropped IS NULL ORDER BY row) - 1 AS place
    FROM read_parquet($quality)"""

_BEST_OF_SHARD = """row IN (SELECT row FROM joined WHERE dropped IS NULL
    ORDER BY quality DESC, id LIMIT (SELECT count(*) FILTER (selected) FROM joined))"""


def tabulate(run: Run, shard: int, compute: Compute) -> Receipt:
    """Write `documents/NNNNN.parquet` and `tallies/NNNNN.parquet`.

    Raises:
        RunError: the shard's mask, or the repeats, are missing or stale.
        CorruptFileError: the files of the shard do not hold the same documents, or the mask misses
            the budget.
        StorageError: the disk is full.
    """
    run.receipt("selection", shard)
    names = [score.name for score in run.settings.scores]
    schema = schemas.documents(names, run.settings.selection.max_repeat > 1)
    with temporary_duckdb(run.root, compute) as connection:
        _join(connection, run, shard)
        # Sums of floats depend on how threads divide the rows.
        connection.execute("SET threads = 1")
        metrics = {
            name: _totals(connection, where, ["quality", *names])
            for name, where in SELECTIONS.items()
        }
        path = run.root / companions("documents", shard)[0]
        tallies = (batch.cast(schemas.TALLIES) for batch in stream(connection, _TALLIES))
        write_parquet(path, schemas.TALLIES, tallies, storage=run.storage)
        documents = stream(connection, "FROM documents ORDER BY row")
        rows = (batch.cast(schema) for batch in documents)
        return write_output(run, "documents", shard, schema, rows, {"totals": metrics})


def _join(connection: Any, run: Run, shard: int) -> None:
    best, parameters = _BEST_OF_SHARD, {"shard": shard}
    if run.settings.selection.scope == "corpus":
        best = "false"
        if last := run.receipt("threshold").metrics["top_quality"]:
            best = "(quality > $least OR (quality = $least AND id <= $last))"
            parameters |= {"least": last[0], "last": last[1]}
    more = ["topics"] if run.settings.topics else []
    more += ["embeddings"] if run.settings.keeps_vectors else []
    query = _DOCUMENTS.format(
        topic="topics.topic" if "topics" in more else "NULL",
        read="least(s.text_read, embeddings.text_read)" if "embeddings" in more else "s.text_read",
        joined=" ".join(map(_JOIN.format, more)),
        none=NO_GROUP,
        quality=_QUALITY,
        groups=", ".join(f"{group_column(kind, 's')} AS {kind}" for kind in SOURCE_KINDS),
        added=", ".join(
            f"q.{name}" for name in (*schemas.NEAR_DUPLICATE.names, *schemas.CONTAMINATION.names)
        ),
        best=best,
        repeat=added_repeat(run),
    )
    names = ("scores", "selection", *more)
    paths = {name: str(run.path(name, shard)) for name in names}
    paths["quality"] = str(run.quality_path(shard))
    connection.execute(query, parameters | paths).fetchall()
    [[rows, agreeing, selected, of_mask]] = execute(
        connection,
        "SELECT count(*), count(*) FILTER ((dropped IS NULL) = (logit IS NOT NULL)), "
        "count(*) FILTER (selected), (SELECT count(*) FROM read_parquet(?)) "
        "- count(logit) FROM documents",
        [paths["selection"]],
    )
    if rows != run.shard_rows(shard):
        raise CorruptFileError(
            f"{paths['quality']}: agrees with the scores on {rows} of {run.shard_rows(shard)} "
            "documents; delete it and relaunch"
        )
    if agreeing != rows or of_mask or selected != _expected(run, shard):
        raise CorruptFileError(
            f"{paths['selection']}: {rows - agreeing + of_mask} documents do not match "
            f"{paths['quality']}, and {selected} are selected where {_expected(run, shard)} are "
            "due; delete it and relaunch"
        )


def _expected(run: Run, shard: int) -> int:
    """Number of documents to select from a shard."""
    selection = run.settings.selection
    if selection.mask_model:
        return int(run.receipt("selection", shard).metrics["num_selected"])
    if selection.has_cut:
        return int(run.receipt("threshold").metrics["selected"][shard])
    left = budget.Survivors.of(run.receipt("quality", shard).metrics)
    return budget.shard_units(selection, run.num_documents, left)


_BAND = (
    "CASE WHEN characters < 64 THEN 'below 64' WHEN characters >= 64 THEN format('{:,} to {:,}', "
    "1::BIGINT << floor(log2(characters))::INT, "
    "(2::BIGINT << floor(log2(characters))::INT) - 1) END"
)
_GROUPS = {"all": "'all'", **{kind: kind for kind in SOURCE_KINDS}, "length": _BAND}
_GROUPS["topic"] = f"nullif(topic, '{NO_GROUP}')"
"""The groups of a document, as SQL, by their kind; null: none."""
_TALLIES = (
    " UNION ALL ".join(
        f"SELECT '{kind}' AS kind, {name} AS name, CASE WHEN selected THEN 'selected' "
        "ELSE coalesce(dropped, 'left out') END AS fate, count(*) AS documents, "
        "sum(characters)::BIGINT AS characters, sum(tokens)::BIGINT AS tokens, "
        "count(quality) AS scored, sum(round(1e6 * quality)::BIGINT)::BIGINT AS quality "
        f"FROM documents WHERE {name} IS NOT NULL GROUP BY ALL"
        for kind, name in _GROUPS.items()
    )
    + " ORDER BY kind, name, fate"
)
"""Sums of whole numbers do not depend on their order, unlike those of floats."""


def _totals(connection: Any, where: str, scores: list[str]) -> dict[str, Any]:
    """Documents, characters and tokens of a selection (null if unknown), and its `scores`."""
    # Score names match [a-z][a-z0-9_]* (config.Score), so they are safe as identifiers.
    of_scores = ", ".join(
        f"""'{name}': {{'mean': avg("{name}"), 'least': min("{name}"), 'largest': max("{name}"),
        'missing': count(*) - count("{name}")}}"""
        for name in scores
    )
    [[found]] = execute(
        connection,
        "SELECT {'documents': count(*), 'characters': sum(characters)::BIGINT, "
        f"'tokens': sum(tokens)::BIGINT, 'scores': {{{of_scores}}}}} FROM documents WHERE {where}",
    )
    totals: dict[str, Any] = found
    return totals
