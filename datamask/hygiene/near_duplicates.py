"""Clusters of similar documents over all shards, and which documents of each are kept.

Stage `quality` joins here what the units of `similar_pairs` found. DuckDB does it outside memory,
but for the sketches that differ within a cluster: those of the largest cluster are in memory, with
about 1 KB each. Copies with equal sketches count as one document.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from datamask.hygiene import similar_pairs
from datamask.hygiene.minhash import resembled
from datamask.runs.run import Run
from datamask.runs.stages import stages_of
from datamask.storage.duckdb_scratch import execute, execute_with, stream

_NUMBER = f"((({{}}::BIGINT - {similar_pairs.EARLIER}) << {similar_pairs.ROW_BITS}) + {{}})"
"""SQL: the number of a document, from its shard and row (`similar_pairs.DOCUMENT`)."""


CLUSTERED_AT_ONCE = 2**16
"""Documents that are compared at once, at least; never a part of a cluster."""


def find_near_duplicates(connection: Any, run: Run) -> None:
    """Table `near`: shard, row, `near_duplicate_of` and the similarity of dropped documents.

    Of a cluster, documents are considered in the order of quality and, among equals, of ids. A
    document is dropped only if it is similar to one that is kept, of which the first is named.
    Documents of earlier datasets come first and are kept. *connection* has the table `joined`.
    """
    execute(
        connection,
        "CREATE TABLE near (shard INT, row BIGINT, near_duplicate_of VARCHAR, "
        "near_duplicate_similarity DOUBLE)",
    )
    if "similar_pairs" not in stages_of(run.settings):
        return
    near = run.settings.quality.near_duplicates
    assert near is not None
    _cluster(connection, run)
    similar_pairs.read_sketches(connection, run, "clusters")
    ours = _NUMBER.format(0, 0)
    known = f"SELECT {_NUMBER.format('shard', 'row')} AS document, quality, id FROM joined"
    parameters = []
    if "earlier_signatures" in stages_of(run.settings):
        known += f" UNION ALL SELECT {similar_pairs.DOCUMENT}, 0, id FROM {similar_pairs.ROWS}"
        parameters.append(str(run.path("earlier_signatures")))
    preference = f"document >= {ours}, quality DESC, id, document"
    execute(
        connection,
        "CREATE TABLE members AS SELECT document, cluster, quality, id, sketch, "
        f"first_value(document) OVER (PARTITION BY cluster, sketch ORDER BY {preference}) "
        f"AS leader FROM clusters JOIN sketches USING (document) JOIN ({known}) USING (document)",
        parameters,
    )
    execute(connection, "CREATE TABLE led (leader BIGINT, kept BIGINT, similarity DOUBLE)")
    inserting = connection.cursor()
    for table in _divided(
        stream(
            connection,
            f"SELECT document, document < {ours} AS earlier, cluster, sketch FROM members "
            f"WHERE document = leader ORDER BY cluster, {preference}",
        ),
        near.similarity,
    ):
        execute_with(inserting, table, "INSERT INTO led FROM arriving")
    execute(
        connection,
        f"INSERT INTO near SELECT (m.document - {ours}) >> {similar_pairs.ROW_BITS}, m.document & "
        f"{2**similar_pairs.ROW_BITS - 1}, if(kept < {ours}, 'earlier:', '') || k.id, "
        "if(kept = leader, 1, similarity) FROM members m JOIN led USING (leader) "
        f"JOIN members k ON k.document = kept WHERE m.document >= {ours} AND m.document <> kept",
    )


def _divided(members: Iterable[Any], similarity: float) -> Iterator[pa.Table]:
    """For documents with different sketches, in their order: which is kept, and how similar."""
    waiting: list[pa.Table] = []
    for batch in members:
        waiting.append(pa.table(batch))
        clusters = batch["cluster"].to_numpy()
        if sum(map(len, waiting)) >= CLUSTERED_AT_ONCE and clusters[0] != clusters[-1]:
            whole = int(np.searchsorted(clusters, clusters[-1]))
            ended = [*waiting[:-1], waiting[-1][:whole]]
            waiting = [waiting[-1][whole:]]
            yield _kept(pa.concat_tables(ended), similarity)
    if waiting:
        yield _kept(pa.concat_tables(waiting), similarity)


def _kept(members: pa.Table, similarity: float) -> pa.Table:
    documents, clusters, earlier = (
        members[name].to_numpy() for name in ("document", "cluster", "earlier")
    )
    sketches = similar_pairs.sketches_of(members["sketch"].combine_chunks())
    kept, similarities = resembled(clusters, sketches, similarity, earlier)
    return pa.table({"leader": documents, "kept": documents[kept], "similarity": similarities})


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
