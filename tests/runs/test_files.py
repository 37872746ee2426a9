"""Reading the run's own Parquet files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from datamask.runs.files import read_columns


@pytest.mark.parametrize("has_statistics", [True, False])
@pytest.mark.parametrize("value", [0, 3, 9])
def test_rows_are_chosen_as_arrow_chooses_them(
    tmp_path: Path, value: int, has_statistics: bool
) -> None:
    """In the order of the file, with and without statistics, also where no row group has any."""
    files = pa.array(np.repeat(np.arange(5), 20))
    table = pa.table({"list": [[row] for row in range(100)], "file": files, "row": range(100)})
    path = tmp_path / "order.parquet"
    pq.write_table(table, path, row_group_size=30, write_statistics=has_statistics)
    chosen = table.filter(pc.equal(files, value))
    assert read_columns(path, where=("file", value)).equals(chosen)
    for names in (["row"], ["row", "file"]):
        assert read_columns(path, names, ("file", value)).equals(chosen.select(names))
