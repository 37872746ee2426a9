"""Errors of DuckDB's files and memory name their cause and remedy."""

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.config.compute import Compute
from datamask.errors import (
    CorruptFileError,
    DatamaskError,
    MemoryLackError,
    RunError,
    StorageError,
)
from datamask.runs.files import read_columns
from datamask.storage.duckdb_scratch import stream, temporary_duckdb

FILL = "CREATE TABLE t AS SELECT random() AS a, uuid()::VARCHAR AS b FROM range(300_000)"
SORT = (FILL, "SELECT * FROM t ORDER BY b")


def told(folder: Path, *statements: str, memory: str = "500MB") -> DatamaskError:
    """The error that statements end in."""
    folder.mkdir(parents=True)
    with (
        pytest.raises((RunError, StorageError)) as caught,
        temporary_duckdb(folder, Compute(duckdb_memory=memory)) as connection,
    ):
        for statement in statements:
            connection.execute(statement).fetchall()
    assert not list(folder.iterdir()), "the temporary folder is gone"
    return caught.value


def test_each_cause_has_its_own_remedy(tmp_path):
    """A file at its limit, a full disk and too little memory: three remedies, whatever the path."""
    place = tmp_path / "disk space"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    try:
        error = told(place / "limit", *SORT, memory="20MB")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert type(error) is RunError and "File too large; check that files there" in str(error)
    full = ("SET max_temp_directory_size = '1MB'", *SORT)
    error = told(place / "full", *full, memory="20MB")
    assert isinstance(error, StorageError) and "free some and relaunch" in str(error)
    error = told(place / "small", FILL, memory="1MB")
    assert type(error) is RunError and str(error).endswith("raise compute.duckdb_memory")


def test_errors_of_a_stream_are_those_of_a_query(tmp_path):
    """Too little memory and a damaged file, found while the rows are read."""
    generator = np.random.default_rng(0)
    path = tmp_path / "damaged.parquet"
    pq.write_table(pa.table({"x": generator.random(300_000)}), path, use_dictionary=False)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 100_000] = b"\xff" * 100_000
    path.write_bytes(content)
    damaged = pytest.raises(CorruptFileError, match="finds damaged files")
    with damaged, temporary_duckdb(tmp_path, Compute()) as connection:
        for _ in stream(connection, f"SELECT x FROM '{path}'"):
            pass

    def reader(rows: int) -> Iterator[object]:
        yield rows
        raise OSError("Out of Memory Error: failed to allocate")

    query = SimpleNamespace(to_arrow_reader=reader)
    memory = pytest.raises(RunError, match=r"raise compute\.duckdb_memory")
    with memory, temporary_duckdb(tmp_path, Compute()):
        list(stream(SimpleNamespace(sql=lambda _: query), "SELECT 1"))


@pytest.mark.slow
def test_rotten_bytes_are_one_line_for_every_reader(tmp_path):
    """One flipped bit anywhere in a file: errors of DuckDB and Arrow become ours."""
    path, generator = tmp_path / "rotten.parquet", np.random.default_rng(3)
    columns = {"id": [f"document {row}" for row in range(20)], "score": generator.random(20)}
    pq.write_table(pa.table(columns), path, compression="zstd", write_page_checksum=True)
    whole, told = path.read_bytes(), 0
    for position in range(0, len(whole), 2):
        content = bytearray(whole)
        content[position] ^= 1 << generator.integers(8)
        path.write_bytes(content)
        with contextlib.suppress(CorruptFileError, RunError):
            read_columns(path)
            told -= 1
        with (
            contextlib.suppress(CorruptFileError, RunError),
            temporary_duckdb(tmp_path, Compute()) as connection,
        ):
            connection.execute("FROM read_parquet(?)", [str(path)]).fetchall()
            told -= 1
        told += 2
    assert told > len(whole) // 4, "most of them were noticed"


@pytest.mark.parametrize(
    "reason",
    ["Allocation failure", "Failed to allocate block of 16384 bytes (bad allocation)"],
)
def test_a_machine_without_memory_is_transient(reason, tmp_path):
    """The message, if the system refuses memory below the limit, asks for no higher limit."""
    with pytest.raises(MemoryLackError), temporary_duckdb(tmp_path, Compute()):
        raise duckdb.OutOfMemoryException(f"Out of Memory Error: {reason}")
