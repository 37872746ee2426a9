"""Finding files, and reading exactly the planned rows in one schema."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datamask.config.loading import parse_settings
from datamask.errors import HubUnavailableError, InputError, StorageError
from datamask.planning.plan import plan_run
from datamask.runs.run import Run
from datamask.source.opening import PlannedFiles, list_files, naming, open_parquet
from datamask.source.reading import locate, read_shard
from datamask.source.rows import ROW_SUFFIXES, read_rows
from datamask.source.types import unify_schemas

pytestmark = pytest.mark.usefixtures("undrawn")


def planned(folder: Path, rows_per_shard: int) -> Run:
    """A planned run of the files in a folder."""
    data = {
        "source": {"path": str(folder), "columns": {"text": "id"}},
        "plan": {"rows_per_shard": rows_per_shard},
        "embedding": {"method": "lexical"},
    }
    return plan_run(folder.with_name("run"), parse_settings(data))


def write(path: Path, numbers: list[int], group: int = 3) -> None:
    """A file of numbered rows."""
    table = pa.table({"id": [f"{n}" for n in numbers], "number": pa.array(numbers)})
    pq.write_table(table, path, row_group_size=group)


def numbers(run: Run, shard: int) -> list[int]:
    """The numbers of a shard's rows, in order."""
    batches = list(read_shard(run, shard, ["number"]))
    assert all(batch.schema.names == ["number"] for batch in batches)
    return [value for batch in batches for value in batch[0].to_pylist()]


@given(
    sizes=st.lists(st.integers(0, 20), min_size=1, max_size=4).filter(any),
    group=st.integers(1, 20),
    rows_per_shard=st.integers(1, 15),
)
@settings(max_examples=25, deadline=None)
def test_shards_together_are_the_source_in_order(tmp_path_factory, sizes, group, rows_per_shard):
    """Reading all shards gives every row of real files once, in order."""
    folder, start = tmp_path_factory.mktemp("run") / "source", 0
    folder.mkdir()
    for number, size in enumerate(sizes):
        write(folder / f"{number}.parquet", list(range(start, start + size)), group)
        start += size
    run = planned(folder, rows_per_shard)
    shards = [numbers(run, shard) for shard in range(run.num_shards)]
    assert [len(shard) for shard in shards] == [run.shard_rows(s) for s in range(run.num_shards)]
    assert [value for shard in shards for value in shard] == list(range(start))


def test_locate_names_the_row_in_its_file(tmp_path):
    """A shard's row leads back to the file and the row that a user can look at."""
    (tmp_path / "source").mkdir()
    write(tmp_path / "source" / "a.parquet", [0, 1, 2, 3, 4], 2)
    write(tmp_path / "source" / "b.parquet", [5, 6])
    run = planned(tmp_path / "source", 3)
    for shard in range(run.num_shards):
        for row, value in enumerate(numbers(run, shard)):
            path, place = locate(run, shard, row)
            assert pq.read_table(path)["number"][place].as_py() == value


def test_files_are_found_in_a_folder_by_glob_and_alone(tmp_path, monkeypatch):
    """Folders are searched to the bottom, other files left out; paths are sorted and absolute."""
    for name in ("b/2.parquet", "a/c/1.parquet", "a/.tmp.parquet", "a/notes.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    both = (str(tmp_path / "a/c/1.parquet"), str(tmp_path / "b/2.parquet"))
    assert list_files(str(tmp_path)) == both
    assert list_files(str(tmp_path / "b" / "*.parquet")) == both[1:]
    monkeypatch.chdir(tmp_path)
    assert list_files("a/c/1.parquet") == list_files(both[0]) == both[:1]


def test_a_local_file_is_not_held_in_memory_as_a_whole(tmp_path):
    """Reading all batches takes the memory of one or two row groups."""
    path = tmp_path / "a.parquet"
    table = pa.table({"value": np.random.default_rng(0).standard_normal(2_000_000)})
    pq.write_table(table, path, row_group_size=100_000, compression="none")
    del table
    before, most = pa.total_allocated_bytes(), 0
    with open_parquet(str(path)) as file:
        for batch in file.iter_batches():
            most = max(most, pa.total_allocated_bytes() - before)
            del batch
    assert most < path.stat().st_size / 4


def test_an_absent_column_is_named(tmp_path):
    """Asking for a column that is not there names it, not an empty table."""
    (tmp_path / "source").mkdir()
    write(tmp_path / "source" / "a.parquet", [1])
    run = planned(tmp_path / "source", 4)
    with pytest.raises(InputError, match="shard 00000, column nothing: absent"):
        list(read_shard(run, 0, ["nothing"]))


def test_files_with_small_differences_have_one_schema():
    """Widths, large strings, views, dictionaries and columns without values do not matter."""
    word = pa.dictionary(pa.int32(), pa.string())
    first = pa.schema([("a", word), ("b", pa.int32()), ("c", pa.null()), ("d", pa.string())])
    second = pa.schema(
        [("d", pa.string_view()), ("c", pa.string()), ("b", pa.int64()), ("a", pa.large_string())]
    )
    unified = unify_schemas([("first", first), ("second", second)])
    kinds = (pa.large_string(), pa.int64(), pa.string(), pa.large_string())
    assert unified == pa.schema([*zip("abcd", kinds, strict=True)])


def test_faults_that_may_pass_are_told_from_bad_files():
    """A Hub that does not answer or a lost connection can be tried again."""
    from huggingface_hub.utils import httpx

    hub = "hf://datasets/a/b"
    with pytest.raises(HubUnavailableError, match=f"{hub}: refused"), naming(hub):
        raise httpx.ConnectError("refused")
    with pytest.raises(StorageError, match="s3://a/b: reset"), naming("s3://a/b"):
        raise ConnectionResetError("reset")
    with pytest.raises(ZeroDivisionError), naming("s3://a/b"):
        raise ZeroDivisionError


def test_a_column_that_occurs_twice_is_refused(tmp_path):
    """In files that are not the source, too: either could be meant."""
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table([["one"], ["two"]], names=["text", "text"]), path)
    with pytest.raises(InputError, match=r"a\.parquet, column text: occurs more than once"):
        list(read_rows(path, ("text",), PlannedFiles(path, ROW_SUFFIXES)))
