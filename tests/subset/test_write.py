"""The subset: the right rows, in the source's order and columns, and refusals of bad masks."""

import re
import shutil
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.analysis.documents import tabulate
from datamask.config.compute import Compute
from datamask.errors import CorruptFileError, InputError, RunError
from datamask.execution.pipeline import run_stage
from datamask.planning.plan import plan_run
from datamask.runs import subset_files
from datamask.runs.files import write_parquet
from datamask.runs.opening import open_run
from datamask.runs.receipt import read_receipt
from datamask.runs.records import read_record
from datamask.runs.run import Run
from datamask.subset import write
from datamask.subset.write import write_subset
from tests.conftest import nightly
from tests.finished import corpus, finish, rows_of, settings, table_of

pytestmark = pytest.mark.usefixtures("roughly")


@pytest.fixture(scope="module")
def made(composed: Run, source: Path) -> tuple[Run, pa.Table]:
    """A run with its subset, and its source in order."""
    return composed, pq.read_table(source)


def test_the_subset_is_what_the_masks_say(made):
    """Dump by dump in the source's order, with the source's columns, then ours, looked up by id.

    One dump has a name for a folder, two have not and are together; receipts say which.
    """
    run, source = made
    subset, columns = table_of(run, "subset"), source.column_names
    assert subset.column_names == [*columns, "quality", "logit", "shard"]
    ours = {}
    for shard in range(run.num_shards):
        rows = pq.read_table(run.path("quality", shard)).to_pylist()
        quality = {row["id"]: row["quality"] for row in rows}
        for row in rows_of(run, shard):
            if row["selected"]:
                ours[row["id"]] = (quality[row["id"]], row["logit"], shard)
    chosen = [place for place, row in enumerate(source.to_pylist()) if row["id"] in ours]
    chosen.sort(key=lambda place: source["dump"][place].as_py() != "plain")
    assert subset.select(columns).equals(source.take(chosen)) and len(chosen) == 30
    for row in subset.to_pylist():
        assert (row["quality"], row["logit"], row["shard"]) == ours[row["id"]]
    found = {}
    for unit in range(run.num_units("subset")):
        dumps = set(pq.read_table(run.path("subset", unit))["dump"].to_pylist())
        found[read_receipt(run.path("subset", unit)).metrics["dump"]] = dumps
    assert found == {"plain": {"plain"}, "other": {"<script>alert(1)</script>", "a|b`c"}}


def test_with_too_many_dumps_the_order_is_the_sources(made, tmp_path, monkeypatch):
    """Without a split the same documents are in the source's order, in files of any dump."""
    run, source = made
    shutil.copytree(run.root, tmp_path / "run")
    monkeypatch.setattr(subset_files, "MOST_DUMPS", 1)
    whole = open_run(tmp_path / "run")
    run_stage(whole, "subset", Compute())
    ids = table_of(whole, "subset")["id"].to_pylist()
    assert sorted(ids) == sorted(table_of(run, "subset")["id"].to_pylist())
    place = {key: row for row, key in enumerate(source["id"].to_pylist())}
    assert ids == sorted(ids, key=place.__getitem__)


@pytest.mark.parametrize("workers, most", [(1, 16), (3, 1)])
def test_files_do_not_depend_on_how_many_are_written_at_once(
    made, tmp_path, monkeypatch, workers, most
):
    """One at a time, several at once, all in one pass, or the rest after a crash: the same."""
    run, _ = made
    monkeypatch.setattr(subset_files, "MOST_OPEN", most)
    shutil.copytree(run.root, tmp_path / "run")
    again = open_run(tmp_path / "run")
    for unit in range(1, run.num_units("subset")):
        again.path("subset", unit).unlink()
    run_stage(again, "subset", Compute(workers=workers))
    for unit in range(run.num_units("subset")):
        assert again.path("subset", unit).read_bytes() == run.path("subset", unit).read_bytes()


@pytest.mark.slow
def test_files_of_many_dumps_are_written_in_one_pass(tmp_path, monkeypatch):
    """Three dumps in every shard: each shard is read once, and only row groups that are needed."""
    source = corpus(tmp_path / "source")
    for path in source.iterdir():
        table = pq.read_table(path)
        dumps = pa.array([f"dump-{row % 3}" for row in range(len(table))])
        table = table.set_column(table.column_names.index("dump"), "dump", dumps)
        pq.write_table(table, path, row_group_size=1)
    run = finish(tmp_path / "run", settings(source), "documents")
    read, rows = [], []
    real = write.read_shard

    def counted(run: Run, shard: int, columns: list[str], wanted: np.ndarray) -> object:
        read.append(shard)
        for batch in real(run, shard, columns, wanted):
            rows.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(write, "read_shard", counted)
    run_stage(run, "subset", Compute(workers=2))
    assert len(run.subset_files) == 3
    assert sorted(read) == list(range(run.num_shards))
    assert sum(rows) == 30
    record = read_record(run, "subset", 0)
    assert record is not None
    groups = [
        pq.read_metadata(path).row_group(row) for path in source.iterdir() for row in range(30)
    ]
    whole = sum(group.column(i).total_compressed_size for group in groups for i in range(8))
    assert record.metrics["source_bytes"] < 0.3 * whole


def test_published_files_have_what_the_hub_works_best_with(made):
    """Zstandard, a page index, and pages that end where the content says so."""
    run, _ = made
    metadata = pq.read_metadata(run.path("subset", 0))
    column = metadata.row_group(0).column(0)
    assert column.compression == "ZSTD"
    assert column.has_column_index and column.has_offset_index


def test_pages_follow_the_content(tmp_path):
    """Without the first documents, nearly all of a file's chunks are still the same bytes."""
    words = np.random.default_rng(0).integers(0, 256, (20_000, 100), dtype=np.uint8)
    schema = pa.schema([("text", pa.string())])
    texts = pa.array([row.tobytes().hex() for row in words])

    def pieces(name: str, start: int) -> set[bytes]:
        table = pa.table({"text": texts[start:]}, schema=schema)
        write_parquet(tmp_path / name, schema, [table], **write.PARQUET_OPTIONS)
        # Found by content as well, wherever they are in the file.
        return set(re.findall(rb"\x00.{64}", (tmp_path / name).read_bytes(), re.DOTALL))

    before, after = pieces("a.parquet", 0), pieces("b.parquet", 300)
    assert len(before & after) > 0.5 * len(before)


@pytest.mark.parametrize("name", ["quality", *nightly("SHARD")])
def test_a_source_column_with_the_name_of_one_of_ours_is_kept_under_a_prefix(tmp_path, name):
    """Refused when planned, in any case of letters; with a prefix both are in the subset."""
    source = corpus(tmp_path / "source")
    for path in source.iterdir():
        table = pq.read_table(path)
        theirs = pa.array([f"theirs {row}" for row in range(len(table))])
        pq.write_table(table.append_column(name, theirs), path)
    with pytest.raises(InputError, match=rf"column {name}: .* set subset.column_prefix"):
        finish(tmp_path / "run", settings(source), "subset")
    chosen = settings(source, subset={"column_prefix": "mask_"})
    run = finish(tmp_path / "run", chosen, "subset")
    subset = pq.read_table(run.root / "subset")
    assert subset.column_names[-4:] == [name, "mask_quality", "mask_logit", "mask_shard"]
    places = [int(key.split("-")[1]) for key in subset["id"].to_pylist()]
    assert subset[name].to_pylist() == [f"theirs {place}" for place in places]
    files = f"read_parquet('{run.root}/subset/*.parquet')"
    found = duckdb.connect().sql(f"SELECT avg(mask_quality), min({name}) FROM {files}").fetchall()
    assert found[0][0] == pytest.approx(np.mean(subset["mask_quality"]))
    assert found[0][1].startswith("theirs")


def test_small_files_hold_the_same_rows(made, tmp_path):
    """Shards cut into parts give the same subset; files of the former cut are removed."""
    run, _ = made
    shutil.copytree(run.root, tmp_path / "run")
    chosen = run.settings.model_copy(
        update={"subset": run.settings.subset.model_copy(update={"file_bytes": 1024})}
    )
    small = plan_run(tmp_path / "run", chosen)
    assert max(file.parts for file in small.subset_files) > 1
    run_stage(small, "subset", Compute())
    assert table_of(small, "subset").equals(table_of(run, "subset"))
    names = {path.name for path in (small.root / "subset").iterdir()}
    assert names == {small.path("subset", unit).name for unit in range(len(small.subset_files))}


def spoil_mask(run: Run, change: object) -> None:
    """Rewrite a mask with its own receipt, as a broken disk or a bug would."""
    path = run.path("selection", 1)
    receipt = read_receipt(path)
    table = change(pq.read_table(path))  # type: ignore[operator]
    write_parquet(path, table.schema, [table], lambda rows: receipt)


def without_a_row(table: pa.Table) -> pa.Table:
    """A document is lost."""
    return table.slice(1)


def one_more(table: pa.Table) -> pa.Table:
    """A document more is selected than is due."""
    selected = table["selected"].to_pylist()
    selected[selected.index(False)] = True
    return table.set_column(1, table.schema.field(1), pa.array(selected))


@pytest.mark.parametrize("change", [without_a_row, one_more])
def test_a_mask_that_does_not_fit_is_refused(made, tmp_path, change):
    """No silent join: the file is named, and what the subset is made of is not written."""
    shutil.copytree(made[0].root, tmp_path / "run")
    run = open_run(tmp_path / "run")
    shutil.rmtree(run.root / "documents")
    spoil_mask(run, change)
    with pytest.raises(CorruptFileError, match=r"selection/00001\.parquet: "):
        tabulate(run, 1, Compute())
    assert not list((run.root / "documents").glob("*"))


def test_a_missing_table_is_named(made, tmp_path):
    """The error says which shard and which stage."""
    shutil.copytree(made[0].root, tmp_path / "run")
    run = open_run(tmp_path / "run")
    run.path("documents", 2).unlink()
    with pytest.raises(RunError, match=r"documents/00002\.parquet: missing; run stage `documents`"):
        write_subset(run, 0, Compute())
