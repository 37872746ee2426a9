"""Stages `logits` and `masks`: read a shard's quality and embeddings, learn, write curve and mask.

A shard that keeps its own share of documents learns its mask in one go. Where all shards are cut
together (`datamask.cut`), `logits` learns, and `masks` applies the cut. The ids of both inputs must
be the same in the same order; a mismatch is a corrupt file, not something to join around. The curve
is written first, so that a mask that exists has one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from datamask import budget, schemas
from datamask.checkpoints import Checkpoints
from datamask.config import Compute
from datamask.cut import kept_of_shard
from datamask.errors import CorruptFileError, DeviceMemoryError
from datamask.learning import published
from datamask.learning.learner import LearnedMask, judge_mask, learn_mask
from datamask.store import Receipt, Run, read_columns, shard_seed, write_parquet

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

ROWS_PER_BATCH = 65_536
SECONDS_BETWEEN_LINES = 10
LEAST_WORKING_SET = 64 * 2**20

MOST_ATTEMPTS = 3
LEAST_CHANGE = 0.02
"""A budget of tokens is met by so many attempts, or until the number of documents settles."""


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
    kept = run.receipt("quality", shard).figures["kept"]
    run.receipt("embeddings", shard)
    ids, quality, scores = _read_quality(run, shard, kept)
    return ShardDocuments(ids, quality, scores, _read_features(run, shard, ids))


def make_mask(run: Run, shard: int, compute: Compute) -> Receipt:
    """Write one shard's mask: learn it, or apply the cut of all shards to its logits.

    Args:
        run: the run.
        shard: the shard's number.
        compute: device and memory.

    Raises:
        DeviceMemoryError: the accelerator ran out of memory.
        RunError: an input is not there yet.
        CorruptFileError: the inputs do not hold the same documents.
        SettingsError: the budget or an objective cannot be met.
    """
    selection = run.settings.selection
    documents = read_documents(run, shard)
    if not selection.has_cut:
        left = budget.Survivors.of(run.receipt("quality", shard).figures)
        num_selected = budget.shard_units(selection, run.num_documents, left)
        checkpoints = _checkpoints(run, "masks", shard, compute)
        learned = _learn(run, shard, documents, num_selected, compute, checkpoints)
        _write_curve(run, shard, learned.curve)
        receipt = _write_mask(
            run, shard, documents.ids, learned.logits, learned.selected, learned.figures
        )
        checkpoints.clear()
        return receipt
    found = run.receipt("logits", shard).figures
    logits = _read_logits(run, shard, documents.ids)
    selected = kept_of_shard(run, shard, logits, documents.quality, documents.ids)
    logits = (logits - run.receipt("cut").figures["threshold"]).astype(np.float32)
    if not selection.limits:
        logits = published.on_side(logits, selected)

    def judge(compute: Compute) -> dict[str, Any]:
        return judge_mask(
            documents.features,
            documents.quality,
            selection,
            selected,
            seed=shard_seed(run.settings.seed, shard),
            ids=documents.ids,
            scores=documents.scores,
            compute=compute,
        )

    figures = within_memory(shard, compute, judge)
    figures |= {name: found[name] for name in ("estimator", "steps", "stopped_by")}
    return _write_mask(run, shard, documents.ids, logits, selected, figures)


def learn_logits(run: Run, shard: int, compute: Compute) -> Receipt:
    """Write one shard's logits (`datamask.learning.published`), 0 where its own cut would be.

    Args:
        run: the run.
        shard: the shard's number.
        compute: device and memory.

    Raises:
        As `make_mask`.
    """
    selection = run.settings.selection
    if selection.num_rounds:
        return _logits_of_rounds(run, shard, compute)
    documents = read_documents(run, shard)
    if selection.scope == "corpus":
        _write_curve(run, shard, {name: [] for name in schemas.curves([]).names})
        how = {"estimator": selection.method, "steps": 0, "stopped_by": "complete"}
        return _write_logits(run, shard, documents.ids, _comparable(run, shard, documents), how)
    left = budget.Survivors.of(run.receipt("quality", shard).figures)
    due = budget.shard_units(selection, run.num_documents, left)
    costs = np.ones(len(documents.ids), np.int64)
    num_selected = due
    if selection.tokens is not None:
        costs = read_tokens(run, shard)
        num_selected = _prefix(np.arange(len(costs)), costs, due)
    for attempt in range(MOST_ATTEMPTS):
        checkpoints = _checkpoints(run, "logits", shard, compute, attempt)
        learned = _learn(run, shard, documents, num_selected, compute, checkpoints)
        order = _in_order(learned.logits, documents)
        reached = _prefix(order, costs, due)
        if abs(reached - num_selected) <= LEAST_CHANGE * num_selected:
            break
        num_selected = reached
    logits = learned.logits
    if reached != learned.figures["num_selected"]:
        logits = logits - published.threshold_of(logits, reached)
    _write_curve(run, shard, learned.curve)
    how = {name: learned.figures[name] for name in ("estimator", "steps", "stopped_by")}
    receipt = _write_logits(run, shard, documents.ids, logits, how)
    checkpoints.clear()
    return receipt


def _logits_of_rounds(run: Run, shard: int, compute: Compute) -> Receipt:
    from datamask.learning.rounds import logits_of_rounds

    documents = read_documents(run, shard)
    logits, curve, how = logits_of_rounds(run, shard, documents, compute)
    _write_curve(run, shard, curve)
    return _write_logits(run, shard, documents.ids, logits, how)


def _in_order(logits: np.ndarray, documents: ShardDocuments) -> np.ndarray:
    """Rows by higher logit, higher quality, smaller id."""
    places = np.argsort(np.argsort(documents.ids, kind="stable"), kind="stable")
    return np.lexsort((places, -documents.quality, -logits))


def _comparable(run: Run, shard: int, documents: ShardDocuments) -> np.ndarray:
    """What a method that needs no learning ranks documents of all shards by."""
    if run.settings.selection.method == "top_quality":
        return documents.quality  # what float32 merges, the cut tells apart by quality
    seed = shard_seed(run.settings.seed, shard)
    return np.random.Generator(np.random.PCG64(seed)).random(len(documents.ids))


def _prefix(order: np.ndarray, costs: np.ndarray, due: int) -> int:
    """How many documents, in some order, it takes for their costs to reach what is due."""
    if due <= 0:
        return 0
    return min(int(np.searchsorted(np.cumsum(costs[order]), due)) + 1, len(costs))


def read_tokens(run: Run, shard: int) -> np.ndarray:
    """Tokens of the documents of a shard that went on after pruning; int64, shape N."""
    quality = read_columns(run.path("quality", shard), ["row", "dropped"])
    rows = quality.filter(pc.is_null(quality["dropped"]))["row"]
    tokens = read_columns(run.path("scores", shard), ["tokens"])["tokens"]
    return np.asarray(tokens.take(rows).to_numpy(), np.int64)


def _checkpoints(
    run: Run, stage: str, shard: int, compute: Compute, attempt: int = 0
) -> Checkpoints:
    how = [compute.device_kind, compute.matmul, compute.working_set_bytes, attempt]
    return Checkpoints(run, stage, shard, how, compute.checkpoint_seconds)


def _learn(
    run: Run,
    shard: int,
    documents: ShardDocuments,
    num_selected: int,
    compute: Compute,
    checkpoints: Checkpoints,
) -> LearnedMask:
    def learn(compute: Compute) -> LearnedMask:
        return learn_mask(
            documents.features,
            documents.quality,
            run.settings.selection,
            num_selected,
            seed=shard_seed(run.settings.seed, shard),
            ids=documents.ids,
            scores=documents.scores,
            compute=compute,
            progress=_log_progress(shard),
            keeper=checkpoints,
        )

    return within_memory(shard, compute, learn)


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


def _write_curve(run: Run, shard: int, curve: dict[str, list[float]]) -> None:
    terms = [name for name in curve if name not in ("step", "seconds", "objective")]
    schema = schemas.curves(terms)
    columns = {name: curve[name] for name in schema.names}
    columns["step"] = [int(step) for step in columns["step"]]
    write_parquet(run.curve_path(shard), schema, [pa.table(columns, schema=schema)], root=run.root)


def _read_logits(run: Run, shard: int, ids: np.ndarray) -> np.ndarray:
    path = run.path("logits", shard)
    table = read_columns(path)
    if table["chunk_id"].to_pylist() != list(ids):
        raise CorruptFileError(
            f"{path}: other documents than {run.path('quality', shard)}; delete it and relaunch"
        )
    return np.asarray(table["logit"].to_numpy())


def _write_logits(
    run: Run, shard: int, ids: np.ndarray, logits: np.ndarray, figures: dict[str, Any]
) -> Receipt:
    columns = {"logit": np.asarray(logits, np.float32)}
    return _write_rows(run, "logits", shard, schemas.LOGITS, ids, columns, figures)


def _write_mask(
    run: Run,
    shard: int,
    ids: np.ndarray,
    logits: np.ndarray,
    selected: np.ndarray,
    figures: dict[str, Any],
) -> Receipt:
    columns = {"logit": logits, "selected": selected}
    return _write_rows(run, "masks", shard, schemas.MASK, ids, columns, figures)


def _write_rows(
    run: Run,
    stage: str,
    shard: int,
    schema: pa.Schema,
    ids: np.ndarray,
    columns: dict[str, np.ndarray],
    figures: dict[str, Any],
) -> Receipt:
    def part(start: int) -> pa.Table:
        rows = slice(start, start + ROWS_PER_BATCH)
        values = {name: column[rows] for name, column in columns.items()}
        return pa.table({"chunk_id": pa.array(list(ids[rows]), pa.string()), **values}, schema)

    receipt = write_parquet(
        run.path(stage, shard),
        schema,
        [part(start) for start in range(0, max(len(ids), 1), ROWS_PER_BATCH)],
        lambda rows: run.make_receipt(stage, shard, rows, figures),
        root=run.root,
    )
    assert receipt is not None
    return receipt
