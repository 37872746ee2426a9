"""Read the reports of learning from receipts, as rows of tables of `composition.duckdb`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from datamask.learning.ranked import quality_metrics
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run
from datamask.storage.duckdb_scratch import execute

_VALUES = ("selected", "random", "best", "top_quality", "error", "scale")


def terms(
    run: Run, receipts: list[Receipt], connection: Any, documents: str
) -> list[dict[str, Any]]:
    """Return table `terms`: from the receipts of all masks, or from sums over *documents* (SQL)."""
    if run.settings.selection.scope == "shard":
        return terms_of_shards([receipt.metrics for receipt in receipts])
    if run.settings.has_vectors:
        from datamask.selection.outcome import corpus_metrics  # This imports torch.

        compared = corpus_metrics(run)
    else:
        compared = _compared(run, connection, documents)
    rows = [
        {"term": name, **values, "scale": compared["scales"][name]}
        for name, values in compared["terms"].items()
    ]
    return [*rows, {"term": "objective", "maximise": True, **compared["objective"]}]


def _compared(run: Run, connection: Any, documents: str) -> dict[str, Any]:
    """Return the metrics of quality over the corpus; DuckDB uses one thread, so sums are equal."""
    [(size, *means)] = execute(
        connection,
        "SELECT count(*) FILTER (selected), avg(quality) FILTER (selected), avg(quality), "
        f"avg(quality) FILTER (top_quality) FROM {documents} AND dropped IS NULL",
    )
    ours, mean, best = (value or 0.0 for value in means)
    return quality_metrics(size, ours, mean, best, run.settings.selection.scale_terms)


def terms_of_shards(metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return table `terms` of some shards: mean metrics, weighted by selected documents."""
    parts = [
        (shard["num_selected"], shard["terms"] | {"objective": shard["objective"]})
        for shard in metrics
        if shard["num_selected"]
    ]
    total = float(sum(count for count, _ in parts))

    def mean(name: str, key: str) -> float | None:
        values = [(count, terms[name].get(key)) for count, terms in parts]
        if any(value is None for _, value in values):
            return None
        return sum(float(count) * float(value) for count, value in values) / total

    return [
        {"term": name, "maximise": term.get("maximise", True)}
        | {key: mean(name, key) for key in _VALUES}
        for name, term in (parts[0][1] if parts else {}).items()
    ]


def shards(run: Run, receipts: list[Receipt]) -> list[dict[str, Any]]:
    """Return table `shards`, from the receipts of every shard's mask."""
    rows = []
    for shard, receipt in enumerate(receipts):
        objective = receipt.metrics.get("objective", {})
        facts = {
            "shard": shard,
            "documents": run.shard_rows(shard),
            "candidates": receipt.rows,
            "selected": receipt.metrics["num_selected"],
            "objective": objective.get("selected"),
            "objective_random": objective.get("random"),
            "objective_top_quality": objective.get("top_quality"),
        }
        rows.append(receipt.metrics | facts)
    return rows


CURVES = pa.schema(
    [
        ("shard", pa.int64()),
        ("step", pa.int64()),
        ("term", pa.string()),
        ("value", pa.float64()),
    ]
)
"""Table `curves`."""


def curves(run: Run, shards: Iterable[int]) -> pa.Table:
    """Return table `curves` of some shards: the objective and its terms, step by step.

    Shards that learned nothing by themselves have no rows.
    """
    selection = run.settings.selection
    if selection.scope == "corpus" or selection.mask_model:
        return CURVES.empty_table()
    stage, parts = "learning" if selection.has_cut else "selection", [CURVES.empty_table()]
    for shard in shards:
        curve = dict(run.receipt(stage, shard).metrics.get("curve", {}))
        steps = curve.pop("step", [])
        parts += [
            pa.table([[shard] * len(steps), steps, [term] * len(steps), values], schema=CURVES)
            for term, values in curve.items()
        ]
    return pa.concat_tables(parts).combine_chunks()
