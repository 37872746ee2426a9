"""Stages `learning` and `selection`: learn from quality and embeddings, write curve and mask.

A shard that keeps its own share of documents learns its mask in one go. Where all shards are cut
together (`threshold`), `learning` learns, and `selection` applies the cut. The ids of both inputs
must be the same in the same order; a mismatch is a corrupt file, not something to join around. The
curve is written first, so that a mask that exists has one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from datamask.config.compute import Compute
from datamask.learning import published
from datamask.learning.learner import LearnedMask, judge, learn_mask, scale
from datamask.runs import budget, schemas
from datamask.runs.checkpoints import Checkpoints
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run, shard_seed
from datamask.selection.documents import (
    ShardDocuments,
    read_documents,
    read_logits,
    read_quality,
    read_tokens,
    within_memory,
    write_curve,
    write_logits,
    write_rows,
)
from datamask.selection.threshold import kept_of_shard

logger = logging.getLogger(__name__)
# See docs/log.md#memory.
SECONDS_BETWEEN_LINES = 10

MOST_ATTEMPTS = 3
LEAST_CHANGE = 0.02
"""A budget of tokens is met by so many attempts, or until the number of documents settles
(docs/log.md#threshold)."""


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
    if selection.scope == "corpus":
        return _mask_of_corpus(run, shard)
    documents = read_documents(run, shard)
    if not selection.has_cut:
        left = budget.Survivors.of(run.receipt("quality", shard).metrics)
        num_selected = budget.shard_units(selection, run.num_documents, left)
        checkpoints = _checkpoints(run, "selection", shard, compute)
        learned = _learn(run, shard, documents, num_selected, compute, checkpoints)
        write_curve(run, shard, learned.curve)
        receipt = _write_mask(
            run, shard, documents.ids, learned.logits, learned.selected, learned.metrics
        )
        checkpoints.clear()
        return receipt
    found = run.receipt("learning", shard).metrics
    logits, selected = _cut(run, shard, documents.quality, documents.ids)

    def metrics_with(compute: Compute) -> dict[str, Any]:
        problem = scale(
            documents.features,
            documents.quality,
            selection,
            int(selected.sum()),
            seed=shard_seed(run.settings.seed, shard),
            ids=documents.ids,
            scores=documents.scores,
            compute=compute,
        )
        return judge(problem, selected)

    metrics = within_memory(shard, compute, metrics_with)
    metrics |= {name: found[name] for name in ("estimator", "steps", "stopped_by")}
    return _write_mask(run, shard, documents.ids, logits, selected, metrics)


def _mask_of_corpus(run: Run, shard: int) -> Receipt:
    """What the corpus's cut keeps; the objective is the corpus's, a shard has none of its own."""
    kept = run.receipt("quality", shard).metrics["kept"]
    ids, quality, _ = read_quality(run, shard, kept)
    found = run.receipt("learning", shard).metrics
    logits, selected = _cut(run, shard, quality, ids)
    metrics = {name: found[name] for name in ("estimator", "steps", "stopped_by")}
    metrics |= {"num_selected": int(selected.sum()), "optimality_gap": None}
    return _write_mask(run, shard, ids, logits, selected, metrics)


def _cut(
    run: Run, shard: int, quality: np.ndarray, ids: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """A shard's logits less the threshold of all shards, and the documents that are kept."""
    logits = read_logits(run, shard, ids)
    selected = kept_of_shard(run, shard, logits, quality, ids)
    logits = (logits - run.receipt("threshold").metrics["threshold"]).astype(np.float32)
    if run.settings.selection.limits:
        return logits, selected
    return published.on_side(logits, selected), selected


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
        write_curve(run, shard, {name: [] for name in schemas.curves([]).names})
        how = {"estimator": selection.method, "steps": 0, "stopped_by": "complete"}
        return write_logits(run, shard, documents.ids, _comparable(run, shard, documents), how)
    left = budget.Survivors.of(run.receipt("quality", shard).metrics)
    due = budget.shard_units(selection, run.num_documents, left)
    costs = np.ones(len(documents.ids), np.int64)
    num_selected = due
    if selection.tokens is not None:
        costs = read_tokens(run, shard)
        num_selected = _prefix(np.arange(len(costs)), costs, due)
    for attempt in range(MOST_ATTEMPTS):
        checkpoints = _checkpoints(run, "learning", shard, compute, attempt)
        learned = _learn(run, shard, documents, num_selected, compute, checkpoints)
        order = _in_order(learned.logits, documents)
        reached = _prefix(order, costs, due)
        if abs(reached - num_selected) <= LEAST_CHANGE * num_selected:
            break
        num_selected = reached
    logits = learned.logits
    if reached != learned.metrics["num_selected"]:
        logits = logits - published.threshold_of(logits, reached)
    write_curve(run, shard, learned.curve)
    how = {name: learned.metrics[name] for name in ("estimator", "steps", "stopped_by")}
    receipt = write_logits(run, shard, documents.ids, logits, how)
    checkpoints.clear()
    return receipt


def _logits_of_rounds(run: Run, shard: int, compute: Compute) -> Receipt:
    from datamask.selection.across_shards import logits_of_rounds

    documents = read_documents(run, shard)
    logits, curve, how = logits_of_rounds(run, shard, documents, compute)
    write_curve(run, shard, curve)
    return write_logits(run, shard, documents.ids, logits, how)


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


def _log_progress(shard: int) -> Callable[[int, int], None]:
    told = time.monotonic()

    def progress(step: int, steps: int) -> None:
        nonlocal told
        if time.monotonic() - told >= SECONDS_BETWEEN_LINES:
            told = time.monotonic()
            logger.info("selection: shard %05d: step %d of at most %d", shard, step, steps)

    return progress


def _write_mask(
    run: Run,
    shard: int,
    ids: np.ndarray,
    logits: np.ndarray,
    selected: np.ndarray,
    metrics: dict[str, Any],
) -> Receipt:
    columns = {"logit": logits, "selected": selected}
    return write_rows(run, "selection", shard, schemas.MASK, ids, columns, metrics)
