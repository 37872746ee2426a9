"""Stage `quality`: what is known of each document before embedding, and why it is dropped.

Reasons apply in the order of `schemas.DROP_REASONS`, each only to the documents that are left, so
no document is dropped in favour of one that is itself dropped. The stages before have decided:
`combined` within the shard, `near_duplicates` and `pruning` over all of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datamask.config.compute import Compute
from datamask.runs import schemas
from datamask.runs.files import read_columns
from datamask.runs.output import write_output
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run
from datamask.runs.stages import stages_of

_EVIDENCE = {"near_duplicate_of": pa.string()} | {
    field.name: field.type for field in schemas.CONTAMINATION
}
"""Columns of `quality/` that say for what a document was dropped or flagged."""


def drop(run: Run, shard: int, compute: Compute) -> Receipt:
    """Write `quality/NNNNN.parquet`: scores, quality, and why a document is dropped, of a shard.

    The receipt's metrics: `kept`, `kept_before` (in earlier shards), `kept_total`, the same three
    of `tokens`, `dropped` by reason, `missing` by score, and `length_edges` and `centre`
    (`quality.pruning`).

    Raises:
        RunError: what it reads is missing or stale.
    """
    pruning, scores = run.receipt("pruning").metrics, run.receipt("scores", shard)
    columns = _columns(run, shard)
    is_near = columns["near_duplicate_of"].is_valid()
    reason = pc.if_else(is_near, "near_duplicate", columns.pop("reason"))
    quality, is_worst = columns["quality"], pa.scalar(False)
    if pruning["below"] is not None:
        is_worst = pc.less(quality, pruning["below"])
    elif pruning["last"] is not None:
        least, last = pruning["last"]
        before = pc.and_(pc.equal(quality, least), pc.less_equal(columns["id"], last))
        is_worst = pc.or_(pc.less(quality, least), before)
    is_pruned = pc.and_kleene(reason.is_null(), is_worst)
    columns["dropped"] = pc.if_else(is_pruned, "pruned", reason)
    schema = schemas.quality(score.name for score in run.settings.scores)
    table = pa.table({name: columns[name] for name in schema.names}, schema=schema)
    metrics = {
        **_counts(run, shard),
        "length_edges": pruning["length_edges"],
        "centre": pruning["centre"],
        "missing": {name: one["missing"] for name, one in scores.metrics["scores"].items()},
    }
    receipt = write_output(run, "quality", shard, schema, [table], metrics)
    assert receipt.rows == run.shard_rows(shard)
    return receipt


def _columns(run: Run, shard: int) -> dict[str, pa.Array]:
    """What earlier stages say of a shard's documents, in the source's order."""
    number = run.shard_rows(shard)
    columns = {name: pa.nulls(number, kind) for name, kind in _EVIDENCE.items()}
    wanted = {"scores": ["id", "row"], "combined": None}
    if run.settings.quality.contamination is not None:
        wanted["screening"] = schemas.CONTAMINATION.names
    for stage, names in wanted.items():
        run.receipt(stage, shard)
        table = read_columns(run.path(stage, shard), names)
        columns |= {name: table[name].combine_chunks() for name in table.column_names}
    if "near_duplicates" in stages_of(run.settings):
        run.receipt("near_duplicates")
        path = run.path("near_duplicates")
        found = read_columns(path, filters=[("shard", "=", shard)])
        near = np.full(number, None, object)
        near[found["row"].to_numpy()] = found["near_duplicate_of"].to_pylist()
        columns["near_duplicate_of"] = pa.array(near, pa.string())
    return columns


def _counts(run: Run, shard: int) -> dict[str, Any]:
    """The metrics that count documents and tokens, from `pruning.parquet`."""
    table = read_columns(run.path("pruning"))
    own = table.filter(pc.equal(table["shard"], shard))
    reasons = dict(zip(own["reason"].to_pylist(), own["documents"].to_pylist(), strict=True))
    metrics: dict[str, Any] = {
        "dropped": {reason: reasons.get(reason, 0) for reason in schemas.DROP_REASONS}
    }
    left = table.filter(table["reason"].is_null())
    shards = left["shard"].to_numpy()
    for name, column in (("kept", "documents"), ("tokens", "tokens")):
        numbers = left[column].to_numpy()
        metrics[f"{name}_before"] = int(numbers[shards < shard].sum())
        metrics[name] = int(numbers[shards == shard].sum())
        metrics[f"{name}_total"] = int(numbers.sum())
    return metrics
