"""Rows of files that are not the source."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.errors import InputError
from datamask.source.rows import read_rows


def test_a_column_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    """Either could be meant."""
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table([["one"], ["two"]], names=["text", "text"]), path)
    with pytest.raises(InputError, match=r"a\.parquet, column text: occurs more than once"):
        list(read_rows(path, ("text",)))
