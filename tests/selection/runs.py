"""Runs of a small corpus up to their masks, and the documents that they keep."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datamask.config.compute import Compute
from datamask.config.loading import parse_settings
from datamask.runs.run import Run
from datamask.runs.stages import learning_stages
from tests.finished import finish, selected_ids, settings, table_of

SCOPES = [{"scope": "corpus", "rounds": 2}, {"tokens": 700}, {"scope": "corpus", "tokens": 700}]
SCOPES += [{"scope": "corpus", "rounds": 1}]


def learn(root: Path, folder: Path, *, workers: int = 1, **groups: object) -> Run:
    """A run up to its masks."""
    chosen = settings(folder, **groups)
    return finish(root, chosen, learning_stages(chosen)[-1], Compute(workers=workers))


def learn_vectors(
    root: Path,
    vectors: np.ndarray,
    quality: np.ndarray,
    shards: int,
    /,
    last: str = "mask_model",
    **groups: Any,
) -> tuple[Run, np.ndarray]:
    """A run of layout `features` in so many shards, up to a stage, and its mask."""
    folder = root.with_name(f"{root.name}-source")
    folder.mkdir(parents=True)
    write_vectors(folder, vectors, quality, shards)
    data = {
        "source": {"path": str(folder), "layout": "features"},
        "plan": {"rows_per_shard": len(vectors) // shards},
        "embedding": {"dimension": vectors.shape[1]},
        **groups,
    }
    run = finish(root, parse_settings(data), last)
    return run, table_of(run, "selection")["selected"].to_numpy()


def by_definition(features: np.ndarray, quality: np.ndarray, metric: str) -> dict[str, float]:
    """Values of the terms for some documents of the corpus."""
    count = len(features)
    if metric == "pairwise":
        value = (np.square(features.sum(0)).sum() - count) / (count * (count - 1))
    else:
        correlation = np.corrcoef(features.T)
        value = (np.square(correlation).sum() - len(correlation)) / 10_000
    return {"quality": float(quality.mean()), metric: float(value)}


def write_vectors(
    folder: Path,
    vectors: np.ndarray,
    quality: np.ndarray,
    shards: int,
    names: list[str] | None = None,
) -> Path:
    """Vectors with their quality, as files of a shard each; ids are their places."""
    for shard, rows in enumerate(np.array_split(np.arange(len(vectors)), shards)):
        table = {
            "chunk_id": [names[row] if names else f"{row:05d}" for row in rows],
            "quality_score": quality[rows],
            "feature_arr": pa.array(vectors[rows].astype(np.float32).tolist()),
        }
        pq.write_table(pa.table(table), folder / f"{shard}.parquet")
    return folder


def kept(run: Run) -> list[dict[str, object]]:
    """Facts of the selected documents, in the order of the source."""
    ids = selected_ids(run)
    return [row for row in table_of(run, "scores").to_pylist() if row["id"] in ids]
