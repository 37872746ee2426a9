"""Stage `similar_pairs`: which documents are similar, over all shards, found by some of the bands.

A unit takes some of the bands, and all of them in a small corpus. It reads the values of its bands
of all documents, and the sketches of those that share a hash, which DuckDB sorts by hash outside
memory. All units together find what one unit with every band does, whatever their number.

Only documents that are left are compared, so none is dropped in favour of one that is itself
dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from datamask.config.compute import Compute
from datamask.hygiene.minhash import NEIGHBOURS, Sketches, bands_of, join_similar
from datamask.runs import schemas
from datamask.runs.in_progress import advance
from datamask.runs.output import write_output
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run
from datamask.runs.stage import Unit
from datamask.runs.stages import stages_of
from datamask.storage.duckdb_scratch import execute, groups_of_files, stream, temporary_duckdb

EARLIER = -1
"""In place of a shard, for documents of earlier datasets."""

ROW_BITS = 40
"""A document is one number, in the order of the source: its shard, and its row in these bits."""

ROWS = "read_parquet(?, filename = true, file_row_number = true)"
DOCUMENT = (
    "((coalesce(try_cast(regexp_extract(filename, '([0-9]+)[.]parquet$', 1) AS BIGINT), "
    f"{EARLIER}) - {EARLIER}) << {ROW_BITS}) + file_row_number AS document"
)
"""SQL: rows of files of shards, or of `earlier_signatures`, and their numbers."""

HASHES_AT_ONCE = 2**28
"""Approximate number of band hashes per unit, of at least one band; each takes 16 bytes on disk."""


def units(run: Run) -> list[Unit]:
    """The units of stage `similar_pairs`; none if near-duplicates stay."""
    near = run.settings.quality.near_duplicates
    bands = len(bands_of(near.similarity)) if near else 0
    number = min(-(-bands * run.num_documents // HASHES_AT_ONCE), bands)
    return [Unit(f"similar_pairs/{unit:05d}", number) for unit in range(number)]


def find_similar(run: Run, unit: int, compute: Compute) -> Receipt:
    """Write `similar_pairs/NNNNN.parquet`: documents and the first of their cluster."""
    near = run.settings.quality.near_duplicates
    assert near is not None
    bands = bands_of(near.similarity)[unit :: run.num_units("similar_pairs")]
    if "earlier_signatures" in stages_of(run.settings):
        run.receipt("earlier_signatures")
    for shard in range(run.num_shards):
        run.receipt("screening", shard)
        run.receipt("combined", shard)
    with temporary_duckdb(run.root, compute) as connection:
        _hash_bands(connection, run, bands)
        query = "CREATE TABLE sought AS SELECT DISTINCT document FROM shared ORDER BY document"
        execute(connection, query)
        read_sketches(connection, run, "sought", only_left=True)
        tables = _similar(connection, near.similarity)
        return write_output(run, "similar_pairs", unit, schemas.SIMILAR_PAIRS, tables, {})


def _hash_bands(connection: Any, run: Run, bands: list[slice]) -> None:
    """Table `shared`: the hashes of bands that documents share, and the documents."""
    execute(connection, "CREATE TABLE hashed (hash UBIGINT, document BIGINT)")
    bits = [_bits_of(band) for band in bands]
    hashes, column = ", ".join(map(_hash, bits)), next(iter(bits[0]))
    for _, paths in _files(run):
        execute(
            connection,
            f"INSERT INTO hashed SELECT unnest([{hashes}]) AS hash, {DOCUMENT} FROM {ROWS} "
            f"WHERE {column} IS NOT NULL",
            [paths],
        )
    execute(
        connection,
        "CREATE TABLE shared AS SELECT hash, document FROM hashed WHERE hash IN "
        "(SELECT hash FROM hashed GROUP BY hash HAVING count(*) > 1)",
    )
    execute(connection, "DROP TABLE hashed")


def _bits_of(band: slice) -> dict[str, int]:
    """The columns that hold the values of a band, and which of their bits."""
    bits: dict[str, int] = {}
    for value in range(band.start, band.stop):
        column = schemas.SIGNED.names[value // 4]
        bits[column] = bits.get(column, 0) | 0xFFFF << 16 * (value % 4)
    return bits


def _hash(bits: dict[str, int]) -> str:
    """SQL: a hash of a band, which differs between bands."""
    values = (f"'{name}{mask}', {name} & {mask}::UBIGINT" for name, mask in bits.items())
    return f"hash({', '.join(values)})"


def read_sketches(connection: Any, run: Run, sought: str, *, only_left: bool = False) -> None:
    """Table `sketches`: of the documents in a table, or of those that `combined` leaves."""
    execute(connection, "CREATE TABLE sketches (document BIGINT, sketch BLOB)")
    for shards, paths in _files(run):
        query = (
            f"INSERT INTO sketches SELECT document, sketch FROM (SELECT {DOCUMENT}, sketch FROM "
            f"{ROWS}) JOIN (SELECT document FROM {sought} WHERE document >= ? AND document < ?) "
            "USING (document)"
        )
        parameters = [
            paths,
            *(shard - EARLIER << ROW_BITS for shard in (shards.start, shards.stop)),
        ]
        if only_left and shards.start != EARLIER:
            query += f" JOIN (SELECT {DOCUMENT} FROM {ROWS} WHERE reason IS NULL) USING (document)"
            parameters.append([str(run.path("combined", shard)) for shard in shards])
        execute(connection, query, parameters)


def sketches_of(column: pa.Array) -> Sketches:
    """The sketches in a column of a result of DuckDB."""
    fixed = column.cast(pa.binary(schemas.SKETCH_BYTES))
    numbers = np.frombuffer(fixed.buffers()[1], np.uint64, 8 * len(fixed), 8 * fixed.offset)
    return numbers.reshape(-1, 8)


def _similar(connection: Any, similarity: float) -> Iterator[pa.Table]:
    """Batches of `schemas.SIMILAR_PAIRS`."""
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
        joined = np.flatnonzero(documents != first[labels])
        columns: list[pa.Array] = []
        for found in (documents[joined], first[labels[joined]]):
            columns += [pa.array((found >> ROW_BITS) + EARLIER, pa.int32()), found % ours]
        yield pa.table(columns, schema=schemas.SIMILAR_PAIRS)
        # The next documents may share the last bucket with these.
        kept = lasts[-NEIGHBOURS:][hashes[lasts[-NEIGHBOURS:]] == hashes[-1]]
        hashes, documents, sketches = hashes[kept], documents[kept], sketches[kept]


def _files(run: Run) -> Iterator[tuple[range, list[str]]]:
    """Shards and files of signatures, in groups that one statement reads."""
    if "earlier_signatures" in stages_of(run.settings):
        yield range(EARLIER, 0), [str(run.path("earlier_signatures"))]
    for shards in groups_of_files(run.num_shards):
        yield shards, [str(run.path("screening", shard)) for shard in shards]
        advance(shards.stop, run.num_shards, "shards")
