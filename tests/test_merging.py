"""The subset: the right rows, in the source's order and columns, and refusals of bad masks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from datamask.config import Compute
from datamask.errors import CorruptFileError, RunError
from datamask.merging import merge_subset
from datamask.plan import plan_run
from datamask.store import Run, open_run, read_receipt, write_parquet
from tests.finished import corpus, finish, settings


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, pa.Table]:
    """A run with its subset, and its source in order."""
    folder = tmp_path_factory.mktemp("merging")
    source = corpus(folder / "source")
    return finish(folder / "run", settings(source), "subset"), pq.read_table(source)


def masks_of(run: Run) -> pa.Table:
    """All masks, in order."""
    return pa.concat_tables(
        pq.read_table(run.path("masks", shard)) for shard in range(run.num_shards)
    )


def subset_of(run: Run) -> pa.Table:
    """The subset, its files in order."""
    units = range(run.num_units("subset"))
    return pa.concat_tables(pq.read_table(run.path("subset", unit)) for unit in units)


def test_the_subset_is_what_the_masks_say(made: tuple[Run, pa.Table]) -> None:
    """Exactly the selected ids, in the source's order, to the budget's document."""
    run, source = made
    selected = set(masks_of(run).filter(pc.field("selected"))["chunk_id"].to_pylist())
    expected = [key for key in source["id"].to_pylist() if key in selected]
    assert subset_of(run)["id"].to_pylist() == expected
    assert len(expected) == 30


def test_columns_are_the_sources_then_ours(made: tuple[Run, pa.Table]) -> None:
    """A source column with the name of one of ours is replaced; the others keep their values."""
    run, source = made
    subset = subset_of(run)
    kept = [name for name in source.column_names if name != "quality"]
    assert subset.column_names == [*kept, "quality", "logit", "shard"]
    position = {key: row for row, key in enumerate(source["id"].to_pylist())}
    rows = [position[key] for key in subset["id"].to_pylist()]
    assert subset.select(kept).equals(source.select(kept).take(rows))


def test_appended_columns_are_those_of_the_shard(made: tuple[Run, pa.Table]) -> None:
    """Quality, logit and shard of each row, looked up by id in plain Python."""
    run, _ = made
    expected = {}
    for shard in range(run.num_shards):
        quality = pq.read_table(run.path("quality", shard)).to_pylist()
        by_id = {row["id"]: row["quality"] for row in quality}
        for row in pq.read_table(run.path("masks", shard)).to_pylist():
            expected[row["chunk_id"]] = (by_id[row["chunk_id"]], row["logit"], shard)
    for row in subset_of(run).to_pylist():
        assert (row["quality"], row["logit"], row["shard"]) == expected[row["id"]]


def test_small_files_hold_the_same_rows(made: tuple[Run, pa.Table], tmp_path: Path) -> None:
    """Shards cut into parts give the same subset; files of the former cut are removed."""
    run, _ = made
    shutil.copytree(run.root, tmp_path / "run")
    chosen = run.settings.model_copy(
        update={"subset": run.settings.subset.model_copy(update={"file_bytes": 1024})}
    )
    small = plan_run(tmp_path / "run", chosen)
    assert max(file.parts for file in small.subset_files) > 1
    merge_subset(small, Compute())
    assert subset_of(small).equals(subset_of(run))
    names = {path.name for path in (small.root / "subset").iterdir()}
    assert names == {small.path("subset", unit).name for unit in range(len(small.subset_files))}


def spoil_mask(run: Run, change: object) -> None:
    """Rewrite a mask with its own receipt, as a broken disk or a bug would."""
    path = run.path("masks", 1)
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
    return table.set_column(2, table.schema.field(2), pa.array(selected))


def renamed(table: pa.Table) -> pa.Table:
    """A document has another's name."""
    ids = ["nobody", *table["chunk_id"].to_pylist()[1:]]
    return table.set_column(0, table.schema.field(0), pa.array(ids))


@pytest.mark.parametrize("change", [without_a_row, one_more, renamed])
def test_a_mask_that_does_not_fit_is_refused(
    made: tuple[Run, pa.Table], tmp_path: Path, change: object
) -> None:
    """No silent join: the file is named, and the subset is not written."""
    shutil.copytree(made[0].root, tmp_path / "run")
    run = open_run(tmp_path / "run")
    shutil.rmtree(run.root / "subset")
    spoil_mask(run, change)
    with pytest.raises(CorruptFileError, match=r"masks/00001\.parquet: .*delete it and relaunch"):
        merge_subset(run, Compute())
    assert not list((run.root / "subset").glob("*"))


def test_a_missing_mask_is_named(made: tuple[Run, pa.Table], tmp_path: Path) -> None:
    """The error says which shard and which stage."""
    shutil.copytree(made[0].root, tmp_path / "run")
    run = open_run(tmp_path / "run")
    run.path("masks", 2).unlink()
    with pytest.raises(RunError, match=r"masks/00002\.parquet: missing; run stage `masks`"):
        merge_subset(run, Compute())
