"""Errors of DuckDB's files and memory name their cause and remedy."""

from __future__ import annotations

import resource
from pathlib import Path

import duckdb
import pytest

from datamask.config.compute import Compute
from datamask.errors import DatamaskError, RunError, StorageError
from datamask.storage.duckdb_scratch import temporary_duckdb

FILL = "CREATE TABLE t AS SELECT random() AS a, uuid()::VARCHAR AS b FROM range(300_000)"


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


def test_each_cause_has_its_own_remedy(tmp_path: Path) -> None:
    """A file at its limit, a full disk and too little memory: three remedies, whatever the path."""
    place = tmp_path / "disk space"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    try:
        error = told(place / "limit", FILL, "CHECKPOINT")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert type(error) is RunError and "File too large; check that files there" in str(error)
    full = ("SET max_temp_directory_size = '1MB'", FILL, "SELECT * FROM t ORDER BY b")
    error = told(place / "full", *full, memory="20MB")
    assert isinstance(error, StorageError) and "free some and relaunch" in str(error)
    error = told(place / "small", FILL, memory="1MB")
    assert type(error) is RunError and str(error).endswith("raise compute.duckdb_memory")


def test_a_full_disk_under_duckdb_can_be_tried_again(tmp_path: Path) -> None:
    """The line says what to do; memory that does not suffice names the setting."""
    full = pytest.raises(StorageError, match="no space left for DuckDB")
    with full, temporary_duckdb(tmp_path, Compute()):
        raise duckdb.IOException("IO Error: Could not write file: No space left on device")
    small = pytest.raises(RunError, match=r"raise compute\.duckdb_memory")
    with small, temporary_duckdb(tmp_path, Compute()):
        raise duckdb.OutOfMemoryException("Out of Memory Error: failed to allocate")
    assert list(tmp_path.iterdir()) == []
