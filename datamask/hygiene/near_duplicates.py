"""Stage `near_duplicates`: clusters of similar documents over all shards, and the best of each.

It joins what the units of `similar_pairs` found. DuckDB does it outside memory.
"""

from __future__ import annotations

from typing import Any

from datamask.config.compute import Compute
from datamask.hygiene.similar_pairs import DOCUMENT, EARLIER, ROW_BITS, ROWS
from datamask.runs import schemas
from datamask.runs.output import write_output
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run
from datamask.runs.stages import stages_of
from datamask.storage.duckdb_scratch import (
    execute,
    groups_of_files,
    stream,
    temporary_duckdb,
)


def find_near_duplicates(run: Run, compute: Compute) -> Receipt:
    """Write `near_duplicates.parquet`: which documents are dropped, in the order of the source.

    The document with the best quality is kept; among equals, the one with the smallest id. If the
    cluster contains a document of an earlier dataset, all of ours are dropped.

    Raises:
        RunError: what it reads is missing or stale.
    """
    with temporary_duckdb(run.root, compute) as connection:
        _cluster(connection, run)
        _describe(connection, run)
        ours = _number("0", "0")
        found = stream(
            connection,
            f"SELECT (document - {ours}) >> {ROW_BITS} AS shard, "
            f"document & {2**ROW_BITS - 1} AS row, "
            f"if(kept < {ours}, 'earlier:', '') || kept_id AS near_duplicate_of FROM ("
            "SELECT document, first_value(document) OVER best AS kept, "
            "first_value(id) OVER best AS kept_id FROM members WINDOW best AS "
            f"(PARTITION BY cluster ORDER BY document >= {ours}, quality DESC, id, document)) "
            f"WHERE document <> kept AND document >= {ours} ORDER BY document",
        )
        schema = schemas.NEAR_DUPLICATES
        batches = (batch.cast(schema) for batch in found)
        return write_output(run, "near_duplicates", 0, schema, batches, {})


def _number(shard: str, row: str) -> str:
    return f"(((({shard})::BIGINT - {EARLIER}) << {ROW_BITS}) + {row})"


def _cluster(connection: Any, run: Run) -> None:
    """Table `clusters`: each document of a cluster, and its smallest document as `cluster`.

    Connected components by alternating the operations large-star and small-star (Kiveris et al.
    2014, "Connected Components in MapReduce and Beyond") until all links lead to such a document.
    """
    units = range(run.num_units("similar_pairs"))
    for unit in units:
        run.receipt("similar_pairs", unit)
    execute(
        connection,
        f"CREATE TABLE links AS SELECT DISTINCT {_number('shard', 'row')} AS document, "
        f"{_number('first_shard', 'first_row')} AS other FROM read_parquet(?)",
        [[str(run.path("similar_pairs", unit)) for unit in units]],
    )
    while execute(
        connection,
        "SELECT 1 FROM links GROUP BY document HAVING count(*) > 1 UNION ALL "
        "SELECT 1 FROM links SEMI JOIN (SELECT other AS document FROM links) USING (document) "
        "LIMIT 1",
    ):
        execute(
            connection,
            "CREATE OR REPLACE TABLE links AS WITH both_ways AS (SELECT document, other FROM links "
            "UNION ALL SELECT other, document FROM links), smallest AS (SELECT document, "
            "least(document, min(other)) AS least FROM both_ways GROUP BY document) "
            "SELECT DISTINCT other AS document, least AS other FROM both_ways "
            "JOIN smallest USING (document) WHERE other > document",
        )
        execute(
            connection,
            "CREATE OR REPLACE TABLE links AS WITH smallest AS (SELECT document, "
            "min(other) AS least FROM links GROUP BY document) "
            "SELECT other AS document, least AS other FROM links JOIN smallest USING (document) "
            "WHERE other <> least UNION SELECT document, least FROM smallest",
        )
    execute(
        connection,
        "CREATE TABLE clusters AS SELECT document, other AS cluster FROM links UNION ALL "
        "SELECT DISTINCT other, other FROM links ORDER BY document",
    )


def _describe(connection: Any, run: Run) -> None:
    """Table `members`: `clusters` with quality and id of each document."""
    execute(
        connection,
        "CREATE TABLE members (document BIGINT, cluster BIGINT, quality DOUBLE, id VARCHAR)",
    )
    rows = f"(SELECT {DOCUMENT}, %s FROM {ROWS}) USING (document)"
    if "earlier_signatures" in stages_of(run.settings):
        execute(
            connection,
            f"INSERT INTO members SELECT document, cluster, 0, id FROM clusters JOIN {rows % 'id'}",
            [str(run.path("earlier_signatures"))],
        )
    for shards in groups_of_files(run.num_shards):
        paths = ([str(run.path(of, s)) for s in shards] for of in ("combined", "scores"))
        execute(
            connection,
            "INSERT INTO members SELECT document, cluster, quality, id FROM clusters "
            f"JOIN {rows % 'quality'} JOIN {rows % 'id'} WHERE document >= ? AND document < ?",
            [*paths, *(shard - EARLIER << ROW_BITS for shard in (shards.start, shards.stop))],
        )
