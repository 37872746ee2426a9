"""Stage `composition`: the corpus before and after selection, as a DuckDB file.

`relations.yaml` describes its tables and views; table `receipt` records what the file was computed
from. `datamask query RUN "select ..."` and any DuckDB client open it; it can be moved, with
`documents/` next to it for the views `documents` and `selection`.

In table `terms`, row `objective` is the sum of the weighted terms, each divided by its scale. Scope
`shard`: means over shards, weighted by selected documents; each shard has its own scales. Scope
`corpus`: values of the corpus, and the `scale` of each term. Shards then have no objectives.

Its inputs add up over shards: the receipts of `documents/` and `selection/`, `tallies/` and, in
scope `corpus`, sums over embeddings; only `score_explained` reads `documents/`. Sums add
integers, or shards in their order, so that equal runs give equal values.
"""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa

from datamask.analysis import learning_tables
from datamask.analysis.explained import explained
from datamask.analysis.summary import documents_of
from datamask.config.compute import Compute
from datamask.config.selection import NO_GROUP
from datamask.runs.files import replace_file
from datamask.runs.run import Run
from datamask.runs.schemas import DROP_REASONS
from datamask.storage.duckdb_scratch import (
    execute,
    execute_with,
    temporary_duckdb,
)

GROUP_LIMIT = 1000
"""Maximum number of groups of a kind that are listed: the largest of the source. There may be
millions."""

SELECTIONS = ("source", "candidates", "selected", "top_quality")
"""Sets of documents that are compared."""


READABLE_FROM = "v1.4.0"
"""The oldest DuckDB that opens the file. If it is not asked, DuckDB 2 writes a format that no older
client reads."""


def compose(run: Run, compute: Compute) -> None:
    """Write `composition.duckdb`.

    Raises:
        RunError: a shard's output is missing or stale.
        StorageError: the disk is full.
    """
    receipts = [run.receipt("selection", shard) for shard in range(run.num_shards)]
    totals = [run.receipt("documents", shard).metrics["totals"] for shard in range(run.num_shards)]
    with (
        replace_file(run.local_path("composition"), run.storage) as temporary,
        temporary_duckdb(run.root, compute) as connection,
    ):
        quoted = str(temporary).replace("'", "''")
        connection.execute(f"ATTACH '{quoted}' AS made (STORAGE_VERSION '{READABLE_FROM}')")
        _load(connection, run, totals)
        _funnel(connection)
        scores = [*(score.name for score in run.settings.scores), "quality"]
        kinds = run.settings.source.kinds
        groups = explained(connection, documents_of(run), run.num_documents, scores, kinds)
        # Sums of floats depend on how threads divide the rows.
        connection.execute("SET threads = 1")
        _totals(connection, run.settings.selection.scope)
        quality = run.receipt("quality", 0).metrics
        rows = {
            "score_summary": _scores(run, totals),
            "score_correlations": quality.get("score_correlations", []),
            "score_groups": quality.get("score_groups", []),
            "score_explained": groups,
            "terms": learning_tables.terms(run, receipts, connection, documents_of(run)),
            "shards": learning_tables.shards(run, receipts),
            "curves": learning_tables.curves(run, range(run.num_shards)),
            "rounds": [
                {"round": number, **run.receipt("round_total", number).metrics}
                for number in range(1, run.last_round + 1)
            ],
            "drift": _drift(run),
        }
        for name, rows_of_table in rows.items():
            _fill(connection, f"made.{name}", _TABLES[name], rows_of_table)
        _views(connection, run)
        receipt = run.make_receipt("composition", 0, run.num_documents)
        connection.execute("CREATE TABLE made.receipt AS SELECT ? AS receipt", [receipt.to_json()])
        connection.execute("DETACH made")


def _drift(run: Run) -> list[dict[str, Any]]:
    if not run.settings.selection.mask_model:
        return []
    from datamask.selection.judging import drift  # This imports torch.

    return drift(run)


def _views(connection: Any, run: Run) -> None:
    """Make views of the shards' files by relative path, for clients in the run's folder."""
    run.path("documents", 0)
    folder = str(run.root.absolute()).replace("'", "''")
    connection.execute(f"SET file_search_path = '{folder}'")
    connection.execute(f"CREATE VIEW made.documents AS FROM {documents_of(run, '')}")
    connection.execute("CREATE VIEW made.selection AS FROM documents WHERE selected")


def _load(connection: Any, run: Run, totals: list[dict[str, Any]]) -> None:
    """Make table `parts`, a row per shard and selection, and table `tallies`, sums over shards."""
    rows = [
        {"shard": shard, "selection": name, **values}
        for shard, selections in enumerate(totals)
        for name, values in selections.items()
    ]
    _fill(connection, "parts", _PARTS, rows)
    tallies = [run.root / run.beside("documents", shard)[0] for shard in range(len(totals))]
    sums = ", ".join(f"sum({name})::BIGINT AS {name}" for name in _SUMS)
    connection.execute(
        f"CREATE TABLE tallies AS SELECT kind, name, fate, {sums} FROM "
        "read_parquet($paths, hive_partitioning = false) GROUP BY ALL",
        {"paths": [str(run.fetch(path)) for path in tallies]},
    ).fetchall()


_SUMS = ("documents", "characters", "tokens", "scored", "quality")
"""Columns of tallies that add up."""

_PARTS = "shard BIGINT, selection VARCHAR, documents BIGINT, characters BIGINT, tokens BIGINT"
_TABLES = {
    "score_summary": "score VARCHAR, selection VARCHAR, mean DOUBLE, least DOUBLE, largest DOUBLE, "
    "missing BIGINT",
    "score_correlations": "score VARCHAR, other VARCHAR, correlation DOUBLE, documents BIGINT",
    "score_groups": "kind VARCHAR, name VARCHAR, documents BIGINT, best_whole BIGINT, "
    "best_within BIGINT",
    "score_explained": "score VARCHAR, kind VARCHAR, documents BIGINT, groups BIGINT, auc DOUBLE, "
    "eta_squared DOUBLE, constant_groups BIGINT, constant_documents BIGINT",
    "terms": "term VARCHAR, maximise BOOLEAN, selected DOUBLE, random DOUBLE, best DOUBLE, "
    "top_quality DOUBLE, error DOUBLE, scale DOUBLE",
    "shards": "shard BIGINT, documents BIGINT, candidates BIGINT, selected BIGINT, "
    "estimator VARCHAR, steps BIGINT, stopped_by VARCHAR, optimality_gap DOUBLE, "
    "objective DOUBLE, objective_random DOUBLE, objective_top_quality DOUBLE",
    "curves": "shard BIGINT, step BIGINT, term VARCHAR, value DOUBLE",
    "rounds": "round BIGINT, objective DOUBLE, share DOUBLE, documents DOUBLE, dual_price DOUBLE, "
    "settled BOOLEAN",
    "drift": 'term VARCHAR, "then" DOUBLE, now DOUBLE, deviation_then DOUBLE, '
    "deviation_now DOUBLE, shift DOUBLE",
}
"""Columns of the tables that are made of rows."""


def _fill(connection: Any, table: str, columns: str, rows: list[dict[str, Any]] | pa.Table) -> None:
    """Make a table of rows; missing values become null, values without a column are left out."""
    connection.execute(f"CREATE TABLE {table} ({columns})")
    schema = connection.sql(f"FROM {table}").to_arrow_table().schema
    known = isinstance(rows, pa.Table)
    arriving = rows if known else pa.Table.from_pylist(rows, schema=schema)
    execute_with(connection, arriving, f"INSERT INTO {table} FROM arriving")


def _totals(connection: Any, scope: str) -> None:
    # The sum over no documents is 0; null means unknown.
    whole = (
        "SELECT selection, sum(documents)::DOUBLE AS documents, "
        "if(sum(documents) = 0, 0, sum(characters))::DOUBLE AS characters, "
        "if(sum(documents) = 0, 0, sum(tokens))::DOUBLE AS tokens "
        "FROM parts GROUP BY selection"
    )
    # The expected mean of a random subset is the mean of the candidates of its shard or corpus.
    group = "GROUP BY shard ORDER BY shard" if scope == "shard" else ""
    of = "FILTER (selection = '{}')"
    candidates, selected = of.format("candidates"), of.format("selected")
    random = (
        "SELECT 'random', sum(n), sum(n * c / k), sum(n * t / k) FROM (SELECT "
        f"sum(documents) {selected} AS n, sum(documents) {candidates} AS k, "
        f"sum(characters) {candidates} AS c, sum(tokens) {candidates} AS t "
        f"FROM parts {group}) WHERE k > 0"
    )
    connection.execute(
        f"CREATE TABLE made.totals AS SELECT *, characters / nullif(documents, 0) AS "
        f"mean_characters, tokens / nullif(documents, 0) AS mean_tokens "
        f"FROM ({whole} UNION ALL {random}) "
        f"ORDER BY list_position({[*SELECTIONS, 'random']}, selection)"
    )


def _scores(run: Run, totals: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return table `score_summary`, from the shards' summaries in order."""
    rows = []
    for score in ("quality", *(score.name for score in run.settings.scores)):
        for selection in SELECTIONS:
            count = missing = 0
            mean, least, largest = 0.0, math.inf, -math.inf
            for shard in totals:
                summary = shard[selection]["scores"][score]
                missing += summary["missing"]
                number = shard[selection]["documents"] - summary["missing"]
                if not number:
                    continue
                count += number
                mean += (summary["mean"] - mean) * (number / count)
                least, largest = min(least, summary["least"]), max(largest, summary["largest"])
            values = (mean, least, largest) if count else (None, None, None)
            row = {"score": score, "selection": selection, "missing": missing}
            rows.append(row | dict(zip(("mean", "least", "largest"), values, strict=True)))
    return rows


_FUNNEL = f"""
CREATE TABLE made.funnel AS WITH largest AS (
    SELECT kind, name FROM tallies
    WHERE kind IN (SELECT kind FROM tallies WHERE name <> '{NO_GROUP}') GROUP BY kind, name
    QUALIFY name = '{NO_GROUP}'
        OR row_number() OVER (PARTITION BY kind ORDER BY sum(documents) DESC, name) <= {GROUP_LIMIT}
), counted AS (
    SELECT kind, name, number, step,
        coalesce(sum(documents) FILTER (gone > number), 0)::BIGINT AS documents,
        (sum(characters) FILTER (gone > number))::BIGINT AS characters,
        (sum(tokens) FILTER (gone > number))::BIGINT AS tokens,
        round(sum(quality) FILTER (gone > number) / 1e6
            / nullif(sum(scored) FILTER (gone > number), 0), 6) AS mean_quality
    FROM largest JOIN tallies USING (kind, name) JOIN fates USING (fate) CROSS JOIN steps
    GROUP BY kind, name, number, step
)
SELECT *, characters / nullif(documents, 0) AS mean_characters,
    tokens / nullif(documents, 0) AS mean_tokens
FROM counted ORDER BY kind, name, number;
CREATE TABLE made.groups AS SELECT s.kind, s.name, s.documents AS documents_before,
    k.documents AS documents_after, s.documents / w.documents AS share_before,
    k.documents / greatest(w.kept, 1) AS share_after
FROM made.funnel s JOIN made.funnel k USING (kind, name) JOIN (
    SELECT kind, sum(documents) AS documents,
        coalesce(sum(documents) FILTER (fate = 'selected'), 0) AS kept
    FROM tallies GROUP BY kind) w USING (kind)
WHERE s.step = 'source' AND k.step = 'selected' AND s.kind <> 'all'
ORDER BY kind, documents_before DESC, name
"""


def _funnel(connection: Any) -> None:
    """Make tables `funnel` and `groups`: documents of each group that remain after each step."""
    fates = {fate for (fate,) in execute(connection, "SELECT DISTINCT fate FROM tallies")}
    steps = ["source", *(reason for reason in DROP_REASONS if reason in fates), "selected"]
    rows = [{"number": number, "step": step} for number, step in enumerate(steps)]
    _fill(connection, "steps", "number BIGINT, step VARCHAR", rows)
    gone = {step: number for number, step in enumerate(steps[1:-1], 1)}
    gone |= {"left out": len(steps) - 1, "selected": len(steps)}
    rows = [{"fate": fate, "gone": number} for fate, number in gone.items()]
    _fill(connection, "fates", "fate VARCHAR, gone BIGINT", rows)
    connection.execute(_FUNNEL)
