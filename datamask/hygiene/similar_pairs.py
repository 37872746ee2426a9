"""Stage `similar_pairs`: which documents are similar, over all shards, found by some of the bands.

A unit takes some of the bands, and all of them in a small corpus. It reads the signatures of all
shards twice: first to hash its bands, then for the documents that share a hash, which alone are
compared. All units together find what one unit with every band does, whatever their number.

Only documents that are left are compared, so none is dropped in favour of one that is itself
dropped.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from datamask.config.compute import Compute
from datamask.config.inputs import NearDuplicates
from datamask.hygiene.minhash import (
    NUMBERS,
    Signatures,
    bands_of,
    cluster,
    hash_band,
    read_signatures,
)
from datamask.runs import schemas
from datamask.runs.files import read_columns
from datamask.runs.in_progress import advance
from datamask.runs.output import write_output
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run
from datamask.runs.stage import Unit
from datamask.runs.stages import stages_of
from datamask.storage.duckdb_scratch import execute, execute_with, stream, temporary_duckdb

EARLIER = -1
"""In place of a shard, for documents of earlier datasets."""

ROW_BITS = 40
"""A document is one number, in the order of the source: its shard, and its row in these bits."""

HASHES_AT_ONCE = 2**28
"""Approximate number of band hashes per unit; each takes 16 bytes on disk."""


def num_units(near: NearDuplicates, documents: int) -> int:
    """The number of units for a corpus of so many documents; at most one for each band."""
    bands = len(bands_of(near.similarity))
    return min(bands, -(-bands * documents // HASHES_AT_ONCE))


def units(run: Run) -> list[Unit]:
    """The units of stage `similar_pairs`; none if near-duplicates stay."""
    near = run.settings.quality.near_duplicates
    number = num_units(near, run.num_documents) if near else 0
    return [Unit(f"similar_pairs/{unit:05d}", number) for unit in range(number)]


def find_similar(run: Run, unit: int, compute: Compute) -> Receipt:
    """Write `similar_pairs/NNNNN.parquet`: documents and the first of their cluster.

    Raises:
        RunError: what it reads is missing or stale.
    """
    near = run.settings.quality.near_duplicates
    assert near is not None
    bands = bands_of(near.similarity)[unit :: run.num_units("similar_pairs")]
    with (
        temporary_duckdb(run.root, compute) as connection,
        tempfile.TemporaryFile(dir=run.root) as file,
    ):
        numbers = _sharing(connection, run, bands)
        for first, signatures, _ in _signatures(run):
            bounds = np.searchsorted(numbers, [first, first + len(signatures)])
            file.write(signatures[numbers[slice(*bounds)] - first].tobytes())
        file.flush()
        gathered = np.zeros((0, NUMBERS), np.uint16)
        if len(numbers):
            gathered = np.memmap(file, np.dtype("<u2"), "r", shape=(len(numbers), NUMBERS))
        earlier = int(np.searchsorted(numbers, 1 << ROW_BITS))
        labels = cluster(gathered, near.similarity, earlier, bands)
    joined = np.flatnonzero(labels != np.arange(len(labels), dtype=labels.dtype))
    columns: list[pa.Array] = []
    for found in (numbers[joined], numbers[labels[joined]]):
        columns += [pa.array((found >> ROW_BITS) + EARLIER, pa.int32()), found % (1 << ROW_BITS)]
    table = pa.table(columns, schema=schemas.SIMILAR_PAIRS)
    return write_output(run, "similar_pairs", unit, schemas.SIMILAR_PAIRS, [table], {})


def _signatures(run: Run) -> Iterator[tuple[int, Signatures, npt.NDArray[np.bool_]]]:
    """Number of the first document, signatures and which documents are compared, in blocks."""
    if "earlier_signatures" in stages_of(run.settings):
        number = 0
        run.receipt("earlier_signatures")
        for signatures, is_there in read_signatures(run.path("earlier_signatures")):
            yield number, signatures, is_there
            number += len(signatures)
    for shard in range(run.num_shards):
        run.receipt("screening", shard)
        run.receipt("combined", shard)
        reasons = read_columns(run.path("combined", shard), ["reason"])["reason"]
        is_left, row = reasons.is_null().to_numpy(), 0
        for signatures, is_there in read_signatures(run.path("screening", shard)):
            number = (shard - EARLIER << ROW_BITS) + row
            yield number, signatures, is_there & is_left[row : row + len(is_there)]
            row += len(signatures)
        advance(shard + 1, run.num_shards, "shards")


def _sharing(connection: Any, run: Run, bands: list[slice]) -> npt.NDArray[np.int64]:
    """Numbers of the documents that agree with another one in a band, ascending."""
    execute(connection, "CREATE TABLE hashed (hash UBIGINT, document BIGINT)")
    for number, signatures, is_compared in _signatures(run):
        rows = np.flatnonzero(is_compared)
        hashes = np.concatenate([hash_band(signatures[rows], band) for band in bands])
        arriving = pa.table({"hash": hashes, "document": np.tile(number + rows, len(bands))})
        execute_with(connection, arriving, "INSERT INTO hashed FROM arriving")
    shared = "SELECT hash FROM hashed GROUP BY hash HAVING count(*) > 1"
    found = stream(
        connection,
        f"SELECT DISTINCT document FROM hashed WHERE hash IN ({shared}) ORDER BY document",
    )
    parts = (batch["document"].to_numpy() for batch in found)
    return np.concatenate([np.zeros(0, np.int64), *parts])
