"""A run whose report looks at a part of the documents, and its documents by other means."""

from typing import Any

import numpy as np
import pyarrow.parquet as pq

from datamask.runs.run import Run
from tests.finished import rows_of

SIZES = {"SAMPLED_DOCUMENTS": 50, "ASKED": 14, "EXTREMES": 5}
"""Of the sample, in place of those of `report.sample`."""


def documents_of(run: Run) -> list[dict[str, Any]]:
    """Every document from a run's Parquet files, joined in Python; vectors in float64."""
    found = []
    for shard in range(run.num_shards):
        scores = pq.read_table(run.path("scores", shard)).to_pylist()
        quality = pq.read_table(run.path("quality", shard)).to_pylist()
        masks = {row["id"]: row for row in rows_of(run, shard)}
        vectors = {
            r["chunk_id"]: np.array(r["feature_arr"], dtype=np.float64)
            for r in pq.read_table(run.path("embeddings", shard)).to_pylist()
        }
        rows = []
        for fact, scored in zip(scores, quality, strict=True):
            mask = masks.get(fact["id"], {})
            rows.append(
                {**fact, **scored, "shard": shard, "vector": vectors.get(fact["id"])}
                | {"logit": mask.get("logit"), "selected": mask.get("selected", False)}
            )
        left = sorted((r for r in rows if not r["dropped"]), key=lambda r: (-r["quality"], r["id"]))
        best = {r["id"] for r in left[: sum(r["selected"] for r in rows)]}
        found += [{**row, "top_quality": row["id"] in best} for row in rows]
    return found


def candidates(documents: list[dict[str, Any]], shard: int) -> list[dict[str, Any]]:
    """Return the documents of a shard that pruning left."""
    return [row for row in documents if row["shard"] == shard and not row["dropped"]]


def by_place(documents: list[dict[str, Any]]) -> dict[tuple[int, int], dict[str, Any]]:
    """Documents by shard and row."""
    return {(row["shard"], row["row"]): row for row in documents}


def texts(run: Run) -> dict[str, str]:
    """Texts of the source by id."""
    return {
        row["id"]: row["text"]
        for path in {piece.path for piece in run.pieces}
        for row in pq.read_table(path, columns=["id", "text"]).to_pylist()
    }
