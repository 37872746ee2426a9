"""A shard's documents as the learner needs them, and the files that learning writes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from datamask.config.compute import Compute
from datamask.errors import CorruptFileError, DeviceMemoryError
from datamask.runs import schemas
from datamask.runs.files import read_columns, write_parquet
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

# See docs/log.md#memory.
ROWS_PER_BATCH = 65_536
LEAST_WORKING_SET = 64 * 2**20


@dataclass(frozen=True, slots=True)
class ShardDocuments:
    """A shard's documents that went on after pruning, in the source's order; all of length N."""

    ids: np.ndarray
    quality: np.ndarray
    scores: dict[str, np.ndarray]
    features: np.ndarray


def read_documents(run: Run, shard: int) -> ShardDocuments:
    """What a shard's learner sees.

    Raises:
        RunError: quality or embeddings are not there yet.
        CorruptFileError: the two do not hold the same documents.
    """
    kept = run.receipt(run.quality_stage, shard).metrics["kept"]
    run.receipt("embeddings", shard)
    ids, quality, scores = read_quality(run, shard, kept)
    return ShardDocuments(ids, quality, scores, _read_features(run, shard, ids))


def read_tokens(run: Run, shard: int) -> np.ndarray:
    """Tokens of the documents of a shard that went on after pruning; int64, shape N."""
    quality = read_columns(run.path("quality", shard), ["row", "dropped"])
    rows = quality.filter(pc.is_null(quality["dropped"]))["row"]
    tokens = read_columns(run.path("scores", shard), ["tokens"])["tokens"]
    return np.asarray(tokens.take(rows).to_numpy(), np.int64)


def within_memory(shard: int, compute: Compute, work: Callable[[Compute], Result]) -> Result:
    """Do some work on the device, with half the working set each time it runs out of memory.

    Raises:
        DeviceMemoryError: less cannot help.
    """
    while True:
        try:
            return work(compute)
        except torch.OutOfMemoryError:
            compute = _with_less_memory(shard, compute)


def _with_less_memory(shard: int, compute: Compute) -> Compute:
    """Half the working set, as long as that can help."""
    torch.cuda.empty_cache()
    smaller = compute.working_set_bytes // 2
    if smaller < LEAST_WORKING_SET:
        raise DeviceMemoryError(
            f"shard {shard:05d}: the device has no memory for the learner; free some, or use "
            "smaller shards (plan.rows_per_shard)"
        ) from None
    logger.warning(
        "selection: shard %05d: out of device memory; going on with compute.working_set_bytes=%d",
        shard,
        smaller,
    )
    return compute.model_copy(update={"working_set_bytes": smaller})


def read_quality(
    run: Run, shard: int, kept: int
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Ids, quality and raw scores of the documents of a shard that survived pruning."""
    path = run.quality_path(shard)
    names = [score.name for score in run.settings.scores]
    table = read_columns(path, ["id", *names, "quality", "dropped"])
    table = table.filter(pc.is_null(table["dropped"]))
    if table.num_rows != kept:
        raise CorruptFileError(
            f"{path}: {table.num_rows} documents go on, its receipt says {kept}; delete it and "
            "relaunch"
        )
    ids = np.asarray(table["id"].to_pylist(), dtype=object)
    quality = table["quality"].to_numpy().astype(np.float64)
    if not np.isfinite(quality).all():
        row = int(np.flatnonzero(~np.isfinite(quality))[0])
        raise CorruptFileError(
            f"{path}: id {ids[row]} goes on without a finite quality; delete it and relaunch"
        )
    scores = {name: table[name].to_numpy().astype(np.float32) for name in names}
    return ids, quality, scores


def _read_features(run: Run, shard: int, ids: np.ndarray) -> np.ndarray:
    from datamask.embedding.vectors import read_vectors

    path = run.path("embeddings", shard)
    found, features = read_vectors(path, run.settings.embedding.dimension)
    if len(found) != len(ids) or len(features) != len(ids):
        raise CorruptFileError(
            f"{path}: {len(found)} embeddings for {len(ids)} documents of "
            f"{run.path('quality', shard)}; delete it and relaunch"
        )
    different = np.flatnonzero(np.asarray(found, dtype=object) != ids)
    if len(different):
        row = int(different[0])
        raise CorruptFileError(
            f"{path}: row {row} is {found[row]}, {run.path('quality', shard)} has {ids[row]}; "
            "delete it and relaunch"
        )
    return np.asarray(features)


def write_curve(run: Run, shard: int, curve: dict[str, list[float]]) -> None:
    """Write a shard's optimisation curve."""
    terms = [name for name in curve if name not in ("step", "seconds", "objective")]
    schema = schemas.curves(terms)
    columns = {name: curve[name] for name in schema.names}
    columns["step"] = [int(step) for step in columns["step"]]
    write_parquet(
        run.curve_path(shard), schema, [pa.table(columns, schema=schema)], storage=run.storage
    )


def read_logits(run: Run, shard: int, ids: np.ndarray) -> np.ndarray:
    """Logits of a shard's documents, float32, in the order of *ids*.

    Raises:
        CorruptFileError: the file holds other documents.
    """
    path = run.path("learning", shard)
    table = read_columns(path)
    if table["chunk_id"].to_pylist() != list(ids):
        raise CorruptFileError(
            f"{path}: other documents than {run.path('quality', shard)}; delete it and relaunch"
        )
    return np.asarray(table["logit"].to_numpy())


def write_logits(
    run: Run, shard: int, ids: np.ndarray, logits: np.ndarray, metrics: dict[str, Any]
) -> Receipt:
    """Write a shard's logits; shape N, in the order of the ids."""
    columns = {"logit": np.asarray(logits, np.float32)}
    return write_rows(run, "learning", shard, schemas.LOGITS, ids, columns, metrics)


def write_rows(
    run: Run,
    stage: str,
    shard: int,
    schema: pa.Schema,
    ids: np.ndarray,
    columns: dict[str, np.ndarray],
    metrics: dict[str, Any],
) -> Receipt:
    """Write columns of length N next to the ids, with a receipt."""

    def part(start: int) -> pa.Table:
        rows = slice(start, start + ROWS_PER_BATCH)
        values = {name: column[rows] for name, column in columns.items()}
        return pa.table({"chunk_id": pa.array(list(ids[rows]), pa.string()), **values}, schema)

    receipt = write_parquet(
        run.local_path(stage, shard),
        schema,
        [part(start) for start in range(0, max(len(ids), 1), ROWS_PER_BATCH)],
        lambda rows: run.make_receipt(stage, shard, rows, metrics),
        storage=run.storage,
    )
    assert receipt is not None
    return receipt
