"""Stage `similar_pairs`: similar documents over all shards; a unit searches some of the bands.

In a small corpus one unit takes all bands; in a huge one a unit takes some of the hashes of a band.
It reads the values of its bands of all documents, and the sketches of those that share a hash,
which DuckDB sorts by hash outside memory. All units together find what one unit with every band
would find, whatever their number.

Only documents that are not dropped yet are compared, so none is dropped in favour of one that is
itself dropped. Stage `quality` joins here what the units found (`find_near_duplicates`). DuckDB
does it outside memory, but for the sketches that differ within a cluster: the largest cluster's
sketches are in memory, with about 1 KB each. Copies with equal sketches count as one document.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from datamask.config.compute import Compute
from datamask.config.screening import NearDuplicates
from datamask.hygiene.minhash import MARGIN, NEIGHBOURS, Sketches, bands_of, join_similar, resembled
from datamask.hygiene.overlaps import EARLIER, Overlaps
from datamask.runs import schemas
from datamask.runs.in_progress import advance
from datamask.runs.output import write_output
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run
from datamask.runs.stages import Unit, stages_of
from datamask.storage.duckdb_scratch import (
    execute,
    execute_with,
    groups_of_files,
    stream,
    temporary_duckdb,
)

ROW_BITS = 40
"""A document is one number, in the order of the source: its shard, and its row in these bits."""

ROWS = "read_parquet(?, hive_partitioning = false, filename = true, file_row_number = true)"
_FILE = (
    "((coalesce(try_cast(regexp_extract(filename, '([0-9]+)[.]parquet$', 1) AS BIGINT), "
    f"{EARLIER}) - {EARLIER}) << {ROW_BITS})"
)
DOCUMENT = f"{_FILE} + file_row_number AS document"
"""SQL for rows of files of shards, or of `earlier_signatures`, and their numbers."""

HASHES_AT_ONCE = 2**28
"""Approximate number of band hashes per unit; each takes 16 bytes on disk."""

DOCUMENTS_AT_ONCE = 2**34
"""Maximum number of documents of a unit; each unit reads 80 bytes or more of every document."""


def units(run: Run) -> list[Unit]:
    """List the units of stage `similar_pairs`; none if near-duplicates stay."""
    near = run.settings.quality.near_duplicates
    bands, documents = len(bands_of(near.similarity)) if near else 0, run.num_documents
    most = bands * -(-documents // DOCUMENTS_AT_ONCE)
    number = min(-(-bands * documents // HASHES_AT_ONCE), most)
    return [Unit(f"similar_pairs/{unit:05d}", number) for unit in range(number)]


def find_similar(run: Run, unit: int, compute: Compute) -> Receipt:
    """Write `similar_pairs/NNNNN.parquet`: documents and the first of their cluster."""
    near = run.settings.quality.near_duplicates
    assert near is not None
    bands, number = bands_of(near.similarity), run.num_units("similar_pairs")
    part, parts = unit // len(bands), max(number // len(bands), 1)
    if "earlier_signatures" in stages_of(run.settings):
        run.receipt("earlier_signatures")
    for shard in range(run.num_shards):
        run.receipt("screening", shard)
        run.receipt("combined", shard)
    with temporary_duckdb(run.root, compute) as connection:
        _hash_bands(connection, run, bands[unit % len(bands) :: number], part, parts)
        query = "CREATE TABLE sought AS SELECT DISTINCT document FROM shared ORDER BY document"
        execute(connection, query)
        read_sketches(connection, run, "sought", only_left=True)
        connection.register("none", schemas.SIMILAR_PAIRS.empty_table())
        execute(connection, "CREATE TABLE joined_pairs AS FROM none")
        inserting = connection.cursor()
        for table in _similar(connection, near.similarity - MARGIN):
            execute_with(inserting, table, "INSERT INTO joined_pairs FROM arriving")
        # In this order, a shard's documents are together: `cluster_ngrams` reads only these.
        tables = stream(connection, "SELECT DISTINCT * FROM joined_pairs ORDER BY ALL")
        cast = (table.cast(schemas.SIMILAR_PAIRS) for table in tables)
        return write_output(run, "similar_pairs", unit, schemas.SIMILAR_PAIRS, cast, {})


def _hash_bands(connection: Any, run: Run, bands: list[slice], part: int, parts: int) -> None:
    """Make table `shared`: the hashes of bands that documents share, and the documents."""
    execute(connection, "CREATE TABLE hashed (hash UBIGINT, document BIGINT)")
    hashes, column = ", ".join(map(_hash, bands)), schemas.SIGNED.names[bands[0].start // 4]
    for _, paths in _files(run):
        execute(
            connection,
            f"INSERT INTO hashed SELECT * FROM (SELECT unnest([{hashes}]) AS hash, {DOCUMENT} "
            f"FROM {ROWS} WHERE {column} IS NOT NULL) WHERE hash % {parts} = {part}",
            [paths],
        )
    execute(
        connection,
        "CREATE TABLE shared AS SELECT hash, document FROM hashed WHERE hash IN "
        "(SELECT hash FROM hashed GROUP BY hash HAVING count(*) > 1)",
    )
    execute(connection, "DROP TABLE hashed")


def _hash(band: slice) -> str:
    """Return SQL for a hash of the values of a band, which differs between bands."""
    bits: dict[str, int] = {}
    for value in range(band.start, band.stop):
        column = schemas.SIGNED.names[value // 4]
        bits[column] = bits.get(column, 0) | 0xFFFF << 16 * (value % 4)
    values = (f"'{name}{mask}', {name} & {mask}::UBIGINT" for name, mask in bits.items())
    return f"hash({', '.join(values)})"


def read_sketches(connection: Any, run: Run, sought: str, *, only_left: bool = False) -> None:
    """Make table `sketches` of the documents in *sought*, or of those that `combined` keeps."""
    execute(connection, "CREATE TABLE sketches (document BIGINT, sketch BLOB)")
    for shards, paths in _files(run):
        query = (
            f"INSERT INTO sketches SELECT document, sketch FROM (SELECT {DOCUMENT}, sketch FROM "
            f"{ROWS}) JOIN (SELECT document FROM {sought} WHERE document >= ? AND document < ?) "
            "USING (document)"
        )
        first, end = (shard - EARLIER << ROW_BITS for shard in (shards.start, shards.stop))
        parameters = [paths, first, end]
        if only_left and shards.start != EARLIER:
            query += f" JOIN (SELECT {DOCUMENT} FROM {ROWS} WHERE reason IS NULL) USING (document)"
            parameters.append([str(run.path("combined", shard)) for shard in shards])
        execute(connection, query, parameters)


def sketches_of(column: pa.Array) -> Sketches:
    """Return the sketches in a column of a result of DuckDB."""
    fixed = column.cast(pa.binary(schemas.SKETCH_BYTES))
    numbers = np.frombuffer(fixed.buffers()[1], np.uint64, 8 * len(fixed), 8 * fixed.offset)
    return numbers.reshape(-1, 8)


def _similar(connection: Any, similarity: float) -> Iterator[pa.Table]:
    """Yield batches of `schemas.SIMILAR_PAIRS`."""
    ours = 1 << ROW_BITS
    hashes, documents = np.zeros(0, np.uint64), np.zeros(0, np.int64)
    sketches = np.zeros((0, schemas.SKETCH_BYTES // 8), np.uint64)
    for batch in stream(
        connection,
        "SELECT hash, document, sketch FROM shared JOIN sketches USING (document) "
        "ORDER BY hash, sketch, document",
    ):
        hashes = np.concatenate([hashes, batch["hash"].to_numpy()])
        documents = np.concatenate([documents, batch["document"].to_numpy()])
        sketches = np.concatenate([sketches, sketches_of(batch["sketch"])])
        labels, lasts = join_similar(hashes, sketches, similarity, documents < ours)
        first = np.full(len(labels), np.iinfo(np.int64).max)
        np.minimum.at(first, labels, documents)
        joined = np.flatnonzero(np.bincount(labels)[labels] > 1)
        columns: list[pa.Array] = []
        for numbers in (documents[joined], first[labels[joined]]):
            columns += [pa.array((numbers >> ROW_BITS) + EARLIER, pa.int32()), numbers % ours]
        yield pa.table(columns, schema=schemas.SIMILAR_PAIRS)
        # The next documents may share the last bucket with these.
        kept = lasts[-NEIGHBOURS:][hashes[lasts[-NEIGHBOURS:]] == hashes[-1]]
        hashes, documents, sketches = hashes[kept], documents[kept], sketches[kept]


def _files(run: Run) -> Iterator[tuple[range, list[str]]]:
    """Yield shards and files of signatures, in groups that one statement reads."""
    if "earlier_signatures" in stages_of(run.settings):
        yield range(EARLIER, 0), [str(run.path("earlier_signatures"))]
    for shards in groups_of_files(run.num_shards):
        yield shards, [str(run.path("screening", shard)) for shard in shards]
        advance(shards.stop, run.num_shards, "shards")


_NUMBER = f"((({{}}::BIGINT - {EARLIER}) << {ROW_BITS}) + {{}})"
"""SQL for the number of a document, from its shard and row (`DOCUMENT`)."""

_OURS = _NUMBER.format(0, 0)
_PREFERENCE = f"document >= {_OURS}, standing, quality DESC, id, document"
_SHARD_AND_ROW = f"({{0}} >> {ROW_BITS}) + {EARLIER}, {{0}} & {2**ROW_BITS - 1}"


CLUSTERED_AT_ONCE = 2**16
"""Minimum number of documents that are compared at once; a cluster is never divided."""


def find_near_duplicates(connection: Any, run: Run) -> None:
    """Make table `near`: shard, row, `near_duplicate_of` and similarity of dropped documents.

    In a cluster, documents are considered in the order of `standing`, of quality and, among equals,
    of ids. Those with standing 0 are kept in any case. Any other document is dropped only if it
    copies a kept one, by the exact rule; the first of these is named. Documents of earlier datasets
    come first and are kept. *connection* has the table `joined`. Table `led` has the pairs that
    were compared.
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
    _find_members(connection, run)
    execute(
        connection,
        "CREATE TABLE led (leader BIGINT, other BIGINT, is_dropped BOOL, estimate DOUBLE, "
        "similarity DOUBLE, held DOUBLE)",
    )
    inserting = connection.cursor()
    for table in _divided(
        stream(
            connection,
            "SELECT document, standing = 0 AS earlier, cluster, sketch, ngrams FROM members "
            f"WHERE document = leader ORDER BY cluster, {_PREFERENCE}",
        ),
        near,
    ):
        execute_with(inserting, table, "INSERT INTO led FROM arriving")
    execute(
        connection,
        f"INSERT INTO near SELECT {_SHARD_AND_ROW.format('m.document')}, "
        f"if(k.document < {_OURS}, 'earlier:', '') || k.id, if(is_dropped, similarity, 1) "
        "FROM members m JOIN led USING (leader) JOIN members k "
        "ON k.document = if(is_dropped, other, leader) "
        "WHERE m.standing > 0 AND m.document <> k.document",
    )


def _find_members(connection: Any, run: Run) -> None:
    """Make table `members`: all documents of clusters.

    `leader` is the first document of the cluster with the same n-grams.
    """
    _cluster(connection, run)
    read_sketches(connection, run, "clusters")
    units = range(run.num_units("cluster_ngrams"))
    for unit in units:
        run.receipt("cluster_ngrams", unit)
    known = (
        f"SELECT {_NUMBER.format('shard', 'row')} AS document, standing, quality, id FROM joined"
    )
    parameters: list[Any] = [[str(run.path("cluster_ngrams", unit)) for unit in units]]
    if "earlier_signatures" in stages_of(run.settings):
        known += f" UNION ALL SELECT {DOCUMENT}, 0, 0, id FROM {ROWS}"
        parameters.append(str(run.path("earlier_signatures")))
    execute(
        connection,
        "CREATE TABLE members AS SELECT document, cluster, standing, quality, id, sketch, ngrams, "
        f"first_value(document) OVER (PARTITION BY cluster, hash(ngrams) ORDER BY {_PREFERENCE}) "
        f"AS leader FROM clusters JOIN sketches USING (document) JOIN (SELECT {_FILE} + row AS "
        "document, ngrams FROM read_parquet(?, hive_partitioning = false, filename = true)) "
        f"USING (document) JOIN ({known}) USING (document)",
        parameters,
    )


PAIRS_SHOWN = 10
"""Number of pairs of each verdict, the nearest to the border, that the report shows."""


def compared_pairs(connection: Any) -> dict[str, Any]:
    """Count the pairs that were `dropped` and `kept` by the exact rule, and list some `pairs`.

    These are dropped ones that hardly satisfy the rule, and kept ones that nearly do.
    """
    names = ["dropped", "estimate", "similarity", "held", "id", "shard", "row"]
    names += ["other_id", "other_shard", "other_row"]
    counted = dict(
        execute(connection, "SELECT is_dropped, count(*) FROM led WHERE other <> leader GROUP BY 1")
    )
    rows = execute(
        connection,
        "SELECT is_dropped, estimate, similarity, held, m.id, "
        f"{_SHARD_AND_ROW.format('m.document')}, k.id, {_SHARD_AND_ROW.format('k.document')} "
        "FROM led JOIN members m ON m.document = led.leader JOIN members k ON k.document = other "
        "WHERE other <> led.leader QUALIFY row_number() OVER (PARTITION BY is_dropped ORDER BY "
        f"if(is_dropped, 1, -1) * similarity, m.document) <= {PAIRS_SHOWN} "
        "ORDER BY similarity DESC, m.document",
    )
    pairs = [dict(zip(names, row, strict=True)) for row in rows]
    return {"dropped": counted.get(True, 0), "kept": counted.get(False, 0), "pairs": pairs}


def _divided(members: Iterable[Any], near: NearDuplicates) -> Iterator[pa.Table]:
    """Divide documents with different n-grams, in their order: which pairs, and how similar."""
    waiting: list[pa.Table] = []
    for batch in members:
        waiting.append(pa.table(batch))
        clusters = batch["cluster"].to_numpy()
        if sum(map(len, waiting)) >= CLUSTERED_AT_ONCE and clusters[0] != clusters[-1]:
            whole = int(np.searchsorted(clusters, clusters[-1]))
            ended = [*waiting[:-1], waiting[-1][:whole]]
            waiting = [waiting[-1][whole:]]
            yield _compared(pa.concat_tables(ended), near)
    if waiting:
        yield _compared(pa.concat_tables(waiting), near)


def _compared(members: pa.Table, near: NearDuplicates) -> pa.Table:
    documents, clusters, earlier = (
        members[name].to_numpy() for name in ("document", "cluster", "earlier")
    )
    sketches = sketches_of(members["sketch"].combine_chunks())
    ngrams = members["ngrams"].cast(pa.large_list(pa.uint32())).combine_chunks()
    values, offsets = ngrams.values.to_numpy(), ngrams.offsets.to_numpy()
    compare = Overlaps(values, offsets, near.similarity, near.rule).compare
    others, dropped, figures = resembled(clusters, sketches, earlier, near.similarity, compare)
    columns = [documents, documents[others], pa.array(dropped), *figures.T]
    return pa.table(columns, ["leader", "other", "is_dropped", "estimate", "similarity", "held"])


def _cluster(connection: Any, run: Run) -> None:
    """Make table `clusters`: each document of a cluster, and its smallest document as `cluster`.

    Connected components by alternating the operations large-star and small-star (Kiveris et al.
    2014, "Connected Components in MapReduce and Beyond") until all links lead to such a document.
    """
    units = range(run.num_units("similar_pairs"))
    for unit in units:
        run.receipt("similar_pairs", unit)
    execute(
        connection,
        f"CREATE TABLE links AS SELECT DISTINCT {_NUMBER.format('shard', 'row')} AS document, "
        f"{_NUMBER.format('first_shard', 'first_row')} AS other "
        "FROM read_parquet(?, hive_partitioning = false) WHERE document <> other",
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
