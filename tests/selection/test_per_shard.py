"""The stage reads its two inputs row by row, refuses what does not fit, and writes the mask."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.config.compute import Compute
from datamask.config.loading import parse_settings
from datamask.errors import CorruptFileError, RunError
from datamask.runs import schemas
from datamask.runs.files import write_parquet
from datamask.runs.opening import create_run
from datamask.runs.receipt import read_receipt
from datamask.selection.per_shard import make_mask

CPU = Compute(device="cpu")
DIMENSION = 4


def make_run(
    root, make_shard, rows=60, kept=50, kept_before=0, kept_total=50, embedded=None, **metrics
):
    """A run of one shard whose quality and embeddings are done; the last rows are pruned."""
    settings = parse_settings(
        {
            "source": {"path": "unused"},
            "embedding": {"method": "lexical", "dimension": DIMENSION},
            "selection": {"ratio": 0.2, "metric": "pairwise", "steps": 20},
        }
    )
    run = create_run(root, settings, {})
    piece = ("a.parquet", 0, 1, 0, rows, 1000, "digest")
    columns = dict(zip(schemas.PLAN.names, [[value] for value in (0, *piece)], strict=True))
    write_parquet(run.plan_path, schemas.PLAN, [pa.table(columns, schema=schemas.PLAN)])
    features, quality = make_shard(rows, DIMENSION, 0)
    names = [f"document-{row}" for row in range(rows)]
    table = {
        "id": names,
        "row": range(rows),
        "heuristic": quality,
        "quality": quality,
        "dropped": [None] * kept + ["pruned"] * (rows - kept),
    }
    schema = schemas.quality(["heuristic"])
    table |= {name: [None] * rows for name in schema.names if name not in table}
    metrics = {"centre": 0.0, **metrics}
    counts = {"kept_before": kept_before, "kept": kept, "kept_total": kept_total, **metrics}
    counts |= {"tokens": 0, "tokens_before": 0, "tokens_total": 0}
    write_parquet(
        run.path("quality", 0),
        schema,
        [pa.table({name: list(column) for name, column in table.items()}, schema=schema)],
        lambda n: run.make_receipt("quality", 0, n, counts),
    )
    schema = schemas.scores(["heuristic"])
    facts = {name: table.get(name, [None] * rows) for name in schema.names}
    scores = pa.table({name: list(column) for name, column in facts.items()}, schema=schema)
    write_parquet(run.path("scores", 0), schema, [scores])
    vectors = pa.FixedSizeListArray.from_arrays(
        pa.array(features[:kept].astype(np.float16).ravel(), pa.float16()),
        type=schemas.embeddings(DIMENSION).field("feature_arr").type,
    )
    found = names[: kept if embedded is None else embedded]
    schema, unread = schemas.embeddings(DIMENSION), pa.nulls(len(found), pa.float32())
    write_parquet(
        run.path("embeddings", 0),
        schema,
        [pa.table([pa.array(found), vectors.slice(0, len(found)), unread], schema=schema)],
        lambda n: run.make_receipt("embeddings", 0, n),
    )
    return run


def test_mask_and_receipt_are_written(tmp_path, make_shard):
    """One row per survivor in order, the budget met, the figures kept."""
    run = make_run(tmp_path, make_shard)
    receipt = make_mask(run, 0, CPU)
    table = pq.read_table(run.path("selection", 0))
    assert table.schema.equals(schemas.MASK)
    assert len(table) == 50
    assert sum(table["selected"].to_pylist()) == 12
    assert read_receipt(run.path("selection", 0)) == receipt
    assert receipt.rows == 50 and receipt.metrics["num_selected"] == 12
    assert run.state("selection", 0) == "done"


@pytest.mark.parametrize(("kept", "before", "total"), [(0, 20, 20), (1, 0, 50)])
def test_a_shard_without_documents_or_budget_selects_nothing(
    tmp_path, make_shard, kept, before, total
):
    """It is done, not failed, while others hold the budget."""
    run = make_run(tmp_path, make_shard, kept=kept, kept_before=before, kept_total=total)
    receipt = make_mask(run, 0, CPU)
    assert receipt.rows == kept == pq.read_table(run.path("selection", 0)).num_rows
    assert receipt.metrics["num_selected"] == 0


def test_missing_and_mismatching_inputs_are_named(tmp_path, make_shard):
    """Fewer rows and absent files fail with the file's name."""
    run = make_run(tmp_path / "a", make_shard, embedded=49)
    with pytest.raises(CorruptFileError, match=r"embeddings/00000.parquet: 49 embeddings for 50"):
        make_mask(run, 0, CPU)
    run = make_run(tmp_path / "c", make_shard)
    run.path("embeddings", 0).unlink()
    with pytest.raises(RunError, match="embeddings"):
        make_mask(run, 0, CPU)
    assert not run.path("selection", 0).exists()
