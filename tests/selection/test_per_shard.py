"""The stage reads its inputs row by row, refuses what does not fit, and writes the mask."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.config.compute import Compute
from datamask.errors import CorruptFileError, RunError
from datamask.runs.output import write_output
from datamask.runs.receipt import read_receipt
from datamask.runs.run import Run
from datamask.selection.per_shard import make_mask
from tests.finished import corpus, finish, settings


@pytest.fixture
def run(tmp_path: Path, source: Path) -> Run:
    """A run of three shards whose embeddings are done."""
    return finish(tmp_path / "run", settings(source), "embeddings")


def test_a_shard_without_documents_selects_nothing(tmp_path):
    """It is done, not failed, while others hold the budget."""
    folder = corpus(tmp_path / "source")
    table = pq.read_table(folder / "0.parquet")
    blank = pa.array([" "] * len(table))
    text = table.schema.get_field_index("text")
    pq.write_table(table.set_column(text, "text", blank), folder / "0.parquet")
    chosen = settings(folder, plan={"rows_per_shard": 30})
    run = finish(tmp_path / "run", chosen, "embeddings")
    make_mask(run, 0, Compute())
    receipt = run.receipt("selection", 0)
    assert receipt.rows == receipt.metrics["num_selected"] == 0


def test_missing_and_mismatching_inputs_are_named(run):
    """Fewer rows and absent files fail with the file's name."""
    path = run.path("embeddings", 0)
    table, receipt = pq.read_table(path), read_receipt(path)
    write_output(run, "embeddings", 0, table.schema, [table.slice(1)], {})
    with pytest.raises(CorruptFileError, match=rf"embeddings/00000.parquet: {receipt.rows - 1} "):
        make_mask(run, 0, Compute())
    path.unlink()
    with pytest.raises(RunError, match="embeddings"):
        make_mask(run, 0, Compute())
    assert not run.path("selection", 0).exists()
