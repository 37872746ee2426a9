"""Clusters of similar documents over all shards, and the best of each.

Stage `quality` joins here what the units of `similar_pairs` found. DuckDB does it outside memory.
"""

from __future__ import annotations

from typing import Any

from datamask.hygiene.similar_pairs import DOCUMENT, EARLIER, ROW_BITS, ROWS
from datamask.runs.run import Run
from datamask.runs.stages import stages_of
from datamask.storage.duckdb_scratch import execute

_NUMBER = f"((({{}}::BIGINT - {EARLIER}) << {ROW_BITS}) + {{}})"
"""SQL: the number of a document, from its shard and row (`similar_pairs.DOCUMENT`)."""


def find_near_duplicates(connection: Any, run: Run) -> None:
    """Table `near`: shard, row and `near_duplicate_of` of the documents that are dropped.

    The document with the best quality is kept; among equals, the one with the smallest id. If the
    cluster contains a document of an earlier dataset, all of ours are dropped.

    Args:
        connection: DuckDB with the table `joined`: shard, row, id and quality of all documents.
        run: its stages up to `similar_pairs` are done.

    Raises:
        RunError: what it reads is missing or stale.
    """
    execute(connection, "CREATE TABLE near (shard INT, row BIGINT, near_duplicate_of VARCHAR)")
    if "similar_pairs" not in stages_of(run.settings):
        return
    _cluster(connection, run)
    ours = _NUMBER.format(0, 0)
    execute(
        connection,
        "CREATE TABLE members AS SELECT document, cluster, quality, id FROM clusters JOIN "
        f"(SELECT {_NUMBER.format('shard', 'row')} AS document, quality, id FROM joined) "
        "USING (document)",
    )
    if "earlier_signatures" in stages_of(run.settings):
        execute(
            connection,
            "INSERT INTO members SELECT document, cluster, 0, id FROM clusters JOIN "
            f"(SELECT {DOCUMENT}, id FROM {ROWS}) USING (document)",
            [str(run.path("earlier_signatures"))],
        )
    execute(
        connection,
        f"INSERT INTO near SELECT (document - {ours}) >> {ROW_BITS}, "
        f"document & {2**ROW_BITS - 1}, if(kept < {ours}, 'earlier:', '') || kept_id FROM ("
        "SELECT document, first_value(document) OVER best AS kept, "
        "first_value(id) OVER best AS kept_id FROM members WINDOW best AS "
        f"(PARTITION BY cluster ORDER BY document >= {ours}, quality DESC, id, document)) "
        f"WHERE document <> kept AND document >= {ours}",
    )


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
        f"CREATE TABLE links AS SELECT DISTINCT {_NUMBER.format('shard', 'row')} AS document, "
        f"{_NUMBER.format('first_shard', 'first_row')} AS other FROM read_parquet(?)",
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
