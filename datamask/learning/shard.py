"""Stage `masks`: read a shard's quality and embeddings, learn its mask, write curve and mask.

The ids of both files must be the same in the same order; a mismatch is a corrupt file, not
something to join around. The curve is written first, so that a mask that exists has one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from datamask import budget, schemas
from datamask.checkpoints import Checkpoints
from datamask.config import Compute
from datamask.errors import CorruptFileError, DeviceMemoryError
from datamask.learning.learner import LearnedMask, learn_mask
from datamask.store import Receipt, Run, read_columns, shard_seed, write_parquet

logger = logging.getLogger(__name__)

ROWS_PER_BATCH = 65_536
SECONDS_BETWEEN_LINES = 10
LEAST_WORKING_SET = 64 * 2**20


def learn_shard(run: Run, shard: int, compute: Compute) -> Receipt:
    """Learn and write one shard's mask.

    Args:
        run: the run.
        shard: the shard's number.
        compute: device and memory.

    Raises:
        DeviceMemoryError: the accelerator ran out of memory.
        RunError: quality or embeddings are not there yet.
        CorruptFileError: the two do not hold the same documents.
        SettingsError: the budget or an objective cannot be met.
    """
    settings = run.settings
    counts = run.receipt("quality", shard).figures
    run.receipt("embeddings", shard)
    num_selected = budget.shard_budget(
        budget.total_budget(settings.selection, run.num_documents),
        counts["kept_before"],
        counts["kept"],
        counts["kept_total"],
    )
    ids, quality, scores = _read_quality(run, shard, counts["kept"])
    features = _read_features(run, shard, ids)
    how = [compute.device_kind, compute.matmul, compute.working_set_bytes]
    checkpoints = Checkpoints(run, "masks", shard, how, compute.checkpoint_seconds)
    while True:
        try:
            learned = learn_mask(
                features,
                quality,
                settings.selection,
                num_selected,
                seed=shard_seed(settings.seed, shard),
                ids=ids,
                scores=scores,
                compute=compute,
                progress=_log_progress(shard),
                keeper=checkpoints,
            )
            break
        except torch.OutOfMemoryError:
            compute = _with_less_memory(shard, compute)
    receipt = _write(run, shard, ids, learned)
    checkpoints.clear()
    return receipt


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
        "masks: shard %05d: out of device memory; going on with compute.working_set_bytes=%d",
        shard,
        smaller,
    )
    return compute.model_copy(update={"working_set_bytes": smaller})


def _log_progress(shard: int) -> Callable[[int, int], None]:
    told = time.monotonic()

    def progress(step: int, steps: int) -> None:
        nonlocal told
        if time.monotonic() - told >= SECONDS_BETWEEN_LINES:
            told = time.monotonic()
            logger.info("masks: shard %05d: step %d of at most %d", shard, step, steps)

    return progress


def _read_quality(
    run: Run, shard: int, kept: int
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    path = run.path("quality", shard)
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


def _write(run: Run, shard: int, ids: np.ndarray, learned: LearnedMask) -> Receipt:
    terms = [name for name in learned.curve if name not in ("step", "seconds", "objective")]
    schema = schemas.curves(terms)
    curve = {name: learned.curve[name] for name in schema.names}
    curve["step"] = [int(step) for step in curve["step"]]
    table = pa.table(curve, schema=schema)
    write_parquet(run.curve_path(shard), schema, [table], root=run.root)

    def batches() -> list[pa.Table]:
        parts = range(0, max(len(ids), 1), ROWS_PER_BATCH)
        return [
            pa.table(
                {
                    "chunk_id": pa.array(list(ids[start : start + ROWS_PER_BATCH]), pa.string()),
                    "logit": learned.logits[start : start + ROWS_PER_BATCH],
                    "selected": learned.selected[start : start + ROWS_PER_BATCH],
                },
                schema=schemas.MASK,
            )
            for start in parts
        ]

    receipt = write_parquet(
        run.path("masks", shard),
        schemas.MASK,
        batches(),
        lambda rows: run.make_receipt("masks", shard, rows, learned.figures),
        root=run.root,
    )
    assert receipt is not None
    return receipt
