"""Stage `selection` of a run that is judged by the mask model of another: nothing is learnt.

A document is kept if its logit is above 0, whatever the others are, so one pass is enough and the
number of documents kept is not set. The comparison with random subsets and top quality is that of
scope `shard`.
"""

from __future__ import annotations

import math
from typing import Any

from datamask.config.compute import Compute
from datamask.learning import published
from datamask.runs import schemas
from datamask.runs.run import Run
from datamask.selection.documents import judged, on_device, read_quality, with_vectors, write_rows
from datamask.selection.mask_model import read_model
from datamask.selection.model_file import judged_by


def apply_model(run: Run, shard: int, compute: Compute) -> None:
    """Write the mask of a shard by the run's mask model.

    The metrics have `gains`: mean and deviation over documents of what each term adds to the logit.
    """
    about = judged_by(run)
    assert about is not None
    documents = with_vectors(run, read_quality(run, shard))
    model = read_model(run.settings.selection.mask_model, about)
    judgement = on_device(documents, compute, model.judge)
    selected = judgement.logits > 0
    metrics = judged(run, documents, selected, compute)
    gains = judgement.gains if len(documents.ids) else {}
    metrics["gains"] = {
        name: {"mean": float(gain.mean()), "deviation": float(gain.std())}
        for name, gain in gains.items()
    }
    metrics |= {"estimator": "mask_model", "steps": 0, "stopped_by": "complete"}
    columns = {"logit": published.on_side(judgement.logits, selected), "selected": selected}
    write_rows(run, "selection", shard, schemas.MASK, columns, metrics)


def drift(run: Run) -> list[dict[str, Any]]:
    """How the documents differ from those of the model (`analysis.summary.drift`)."""
    about = judged_by(run)
    if about is None:
        return []
    receipts = [run.receipt("selection", shard) for shard in range(run.num_shards)]
    kept = sum(receipt.metrics["num_selected"] for receipt in receipts)
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
