"""Lance datasets as sources, compared with Lance's own reader; the package pylance is optional."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.config.compute import Compute
from datamask.config.inputs import Source
from datamask.errors import InputError
from datamask.planning.first_settings import look
from datamask.runs.opening import run_storage
from datamask.source.convert import NotConvertedError, convert, source_files
from tests.source.converting import write

lance = pytest.importorskip("lance")


def table(first: int, count: int) -> pa.Table:
    """Documents with a vector and a record each."""
    rows = range(first, first + count)
    vectors = pa.array(np.arange(2 * count, dtype=np.float32))
    return pa.table(
        {
            "id": [f"d{row}" for row in rows],
            "text": pa.array(["river " * (row % 50) for row in rows], pa.large_string()),
            "meta": [{"url": f"https://a.org/{row}", "edu": row / 7} for row in rows],
            "vector": pa.FixedSizeListArray.from_arrays(vectors, 2),
            "language": pa.array(["en", "de"] * (count // 2)).dictionary_encode(),
        }
    )


def read(path, target, **may):
    """The converted copies of a source."""
    _, others = source_files(str(path))
    source = Source(path=str(path))
    copies, _ = convert(str(path), others, source, run_storage(target), Compute(workers=2), **may)
    return copies


def test_a_version_is_read_and_kept(tmp_path, caplog):
    """Rows and order are Lance's, without deleted ones; what is appended later is not read."""
    path = tmp_path / "s" / "x.lance"
    lance.write_dataset(table(0, 6000), path, max_rows_per_file=2500)
    lance.dataset(path).delete("id = 'd7' or id = 'd2600'")
    known = lance.dataset(path).to_table()
    with pytest.raises(NotConvertedError):
        read(path, tmp_path / "run", may_write=False)
    [copy] = read(path, tmp_path / "run")
    got = pq.read_table(copy)
    assert got.num_rows == 5998 and got.to_pylist() == known.to_pylist()
    assert got.schema.field("vector").type == pa.list_(pa.float32(), 2)
    lance.write_dataset(table(6000, 10), path, mode="append")
    before = Path(copy).read_bytes()
    Path(copy).unlink()
    assert read(path, tmp_path / "run") == [copy] and Path(copy).read_bytes() == before
    assert "version 2 is read" in caplog.text
    assert pq.read_table(read(path, tmp_path / "later")[0]).num_rows == 6008
    shutil.rmtree(path)
    for part in (table(5, 10), table(15, 10)):
        lance.write_dataset(part, path, mode="append" if path.exists() else "create")
    with pytest.raises(InputError) as caught:  # It has a version 2 as well, with other rows.
        read(path, tmp_path / "run")
    assert str(caught.value.path) == str(path)


def test_a_folder_may_have_datasets_and_files(tmp_path, monkeypatch):
    """Columns are joined, each file has a copy, globs find both; `init` looks at the first rows."""
    folder = tmp_path / "s"
    lance.write_dataset(table(0, 40), folder / "b.lance")
    lance.write_dataset(table(40, 20).drop_columns(["vector"]), folder / "deep" / "C.LANCE")
    write(folder / "a.jsonl", [{"id": "j0", "text": "stone", "edu": 1.5}])
    tables = [pq.read_table(copy) for copy in read(folder, tmp_path / "run")]
    assert [part.num_rows for part in tables] == [1, 40, 20]
    assert len({part.schema for part in tables}) == 1
    assert tables[0]["edu"].to_pylist() == [1.5] and tables[2]["vector"].null_count == 20
    assert source_files(f"{folder}/*.lance") == ([], [f"{folder}/b.lance"])
    assert look(f"{folder}/b.lance").settings["source"]["path"] == f"{folder}/b.lance"
    manifest = next((folder / "b.lance" / "_versions").glob("*.manifest"))
    for fault in ("damaged", "not installed"):
        manifest.write_bytes(b"none")
        if fault == "not installed":
            monkeypatch.setitem(sys.modules, "lance", None)
        with pytest.raises(InputError) as caught:
            read(folder / "b.lance", tmp_path / fault)
        assert str(caught.value.path) == f"{folder}/b.lance" and "\n" not in str(caught.value)
