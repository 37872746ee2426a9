"""What goes wrong outside DuckDB's memory is told by its own cause."""

from __future__ import annotations

import resource
from pathlib import Path

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
