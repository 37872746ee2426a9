"""Stage `judged`: the logits of a shard's documents by the mask model of another run.

The value of a document is its contribution to the selection that the model was learned with,
whatever the other documents are. So one pass is enough, and stage `selection` keeps all documents
with a logit above 0, however many they are.
"""

from __future__ import annotations

import math
from typing import Any

from datamask.config.compute import Compute
from datamask.learning import published
from datamask.runs import schemas
from datamask.runs.output import write_columns
from datamask.runs.run import Run
from datamask.selection.documents import on_device, read_quality, with_vectors
from datamask.selection.mask_model import read_model
from datamask.selection.model_file import judged_by


def judge_shard(run: Run, shard: int, compute: Compute) -> None:
    """Write `judged/NNNNN.parquet`, with a logit for each document that survived pruning.

    The metric `gains` has the mean and deviation over documents of what each term adds to the
    logit.

    Raises:
        RunError, CorruptFileError: the model has changed since the run was planned, or is damaged.
        DeviceMemoryError: the accelerator ran out of memory.
    """
    about = judged_by(run)
    assert about is not None
    documents = with_vectors(run, read_quality(run, shard))
    model = read_model(run.settings.selection.mask_model, about)
    judgement = on_device(documents, compute, model.judge)
    gains = judgement.gains if len(documents.ids) else {}
    metrics = {"estimator": "mask_model", "steps": 0, "stopped_by": "complete"}
    of_terms = {
        name: {"mean": float(gain.mean()), "deviation": float(gain.std())}
        for name, gain in gains.items()
    }
    # Keep the sign of full precision when a logit becomes float32.
    columns = {"logit": published.on_side(judgement.logits, judgement.logits > 0)}
    write_columns(run, "judged", shard, schemas.LOGITS, columns, metrics | {"gains": of_terms})


def drift(run: Run) -> list[dict[str, Any]]:
    """Compare the documents with the model's own documents (`analysis.summary.drift`)."""
    about = judged_by(run)
    if about is None:
        return []
    shards = range(run.num_shards)
    receipts = [run.receipt("judged", shard) for shard in shards]
    kept = sum(run.receipt("selection", shard).metrics["num_selected"] for shard in shards)
    then, now = about["documents"] / about["source_documents"], kept / run.num_documents
    rows = [{"term": "share kept", "then": then, "now": now, "shift": now / then - 1}]
    for term in about["terms"]:
        gains = [(r.rows, r.metrics["gains"][term["name"]]) for r in receipts if r.rows]
        total = sum(count for count, _ in gains)
        mean = sum(count * gain["mean"] for count, gain in gains) / max(total, 1)
        square = sum(n * (gain["deviation"] ** 2 + gain["mean"] ** 2) for n, gain in gains)
        rows.append(
            {
                "term": term["name"],
                "then": term["mean"],
                "now": mean,
                "deviation_then": term["deviation"],
                "deviation_now": math.sqrt(max(square / max(total, 1) - mean**2, 0.0)),
                "shift": (mean - term["mean"]) / (term["deviation"] or 1.0),
            }
        )
    return rows
