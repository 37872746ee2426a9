"""Stages `learning` and `selection`: learn from a shard's documents, write its mask.

If every shard keeps its own part of the budget, `selection` learns the mask in one go. If documents
of different shards are compared (stage `threshold`), `learning` writes logits, and `selection`
applies the threshold to them. It does the same with the logits of a mask model (stage `judged`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datamask.config.compute import Compute
from datamask.learning import published
from datamask.learning.ranked import LearnedMask, ranges_of, select_ranked
from datamask.runs import budget, schemas
from datamask.runs.checkpoints import Checkpoints
from datamask.runs.in_progress import advance
from datamask.runs.output import write_columns
from datamask.runs.run import Run, shard_seed
from datamask.selection.documents import (
    ShardDocuments,
    compare_mask,
    read_candidates,
    read_column,
    read_quality,
    read_survivors,
    read_tokens,
    with_vectors,
    within_memory,
)
from datamask.selection.terms import terms_of
from datamask.selection.threshold import kept_of_shard

MOST_ATTEMPTS = 3
LEAST_CHANGE = 0.02
"""A budget of tokens is approached in at most `MOST_ATTEMPTS` attempts, or until the number of
documents changes by at most this fraction (docs/log.md#threshold)."""

LEARNED_METRICS = ("estimator", "steps", "stopped_by")
RANGES = "ranges"
"""Metric of stage `learning`: the range of each term; stage `selection` judges masks by it."""

MOST_POINTS = 50
"""Maximum number of points of a learner's curve that a receipt keeps, a few kB
(docs/log.md#curves)."""


def make_mask(run: Run, shard: int, compute: Compute) -> None:
    """Write the mask of a shard: learn it, or keep the documents whose logit is above a threshold.

    Raises:
        DeviceMemoryError: the accelerator ran out of memory.
        SettingsError: the budget or an objective cannot be met.
    """
    selection = run.settings.selection
    is_compared = selection.scope == "shard"
    if is_compared:
        documents = with_vectors(run, read_quality(run, shard))
    else:  # Stage `outcome` computes the objective of the corpus.
        documents = read_survivors(run, shard)
    if selection.mask_model or selection.has_cut:
        logits, selected, metrics = _above_threshold(run, documents, compute)
        ranges = metrics.pop(RANGES, {})  # A mask model has none: nothing was learned here.
        if is_compared:
            metrics |= compare_mask(run, documents, selected, compute, ranges)
    else:
        due = budget.shard_units(selection, run.num_documents, documents.left)
        learned = _learn(run, "selection", documents, due, compute)
        logits, selected, metrics = learned.logits, learned.selected, learned.metrics
        metrics |= kept_curve(learned)
    columns = {"logit": logits, "selected": selected}
    write_columns(run, "selection", shard, schemas.MASK, columns, metrics)


def _above_threshold(
    run: Run, documents: ShardDocuments, compute: Compute
) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Return logits less the threshold, the mask of documents kept (bool, shape N), and metrics.

    All shards share one threshold; for the logits of a mask model it is 0.
    """
    selection = run.settings.selection
    stage = "judged" if selection.mask_model else "learning"
    how = run.receipt(stage, documents.shard).metrics
    metrics = {name: how[name] for name in (*LEARNED_METRICS, RANGES) if name in how}
    if selection.mask_model:
        logits = read_column(run, "judged", documents, "logit").to_numpy()
        selected = logits > 0
    else:
        candidates = read_candidates(run, documents)
        selected = kept_of_shard(run, candidates, compute)
        threshold = run.receipt("threshold").metrics["threshold"]
        logits = (candidates["logit"].to_numpy() - threshold).astype(np.float32)
        if not selection.limits:
            logits = published.on_side(logits, selected)
    return logits, selected, metrics | {"num_selected": int(selected.sum()), "optimality_gap": None}


def learn_logits(run: Run, shard: int, compute: Compute) -> None:
    """Write the logits of a shard (`datamask.learning.published`), 0 at its own threshold.

    Raises:
        DeviceMemoryError: the accelerator ran out of memory.
        SettingsError: the budget or an objective cannot be met.
    """
    selection = run.settings.selection
    if selection.num_rounds:
        from datamask.selection.rounds import logits_of_rounds  # This imports torch.

        logits, metrics = logits_of_rounds(run, shard, compute)
    elif selection.scope == "corpus":
        logits = _comparable(run, read_survivors(run, shard))
        metrics = {"estimator": selection.method, "steps": 0, "stopped_by": "complete"}
    else:
        documents = with_vectors(run, read_quality(run, shard))
        learned, logits = _learn_to_budget(run, documents, compute)
        metrics = {name: learned.metrics[name] for name in LEARNED_METRICS} | kept_curve(learned)
        metrics[RANGES] = ranges_of(learned.metrics["terms"])
    columns = {"logit": np.asarray(logits, np.float32)}
    write_columns(run, "learning", shard, schemas.LOGITS, columns, metrics)


def kept_curve(learned: LearnedMask) -> dict[str, Any]:
    """Return the metric `curve` of a shard that was learned; nothing for other shards.

    It has columns `step`, `objective` and one per term, with at most `MOST_POINTS` points. The last
    is the final mask. Seconds are left out, because a receipt depends on no clock.
    """
    if not learned.metrics["steps"]:
        return {}
    number = len(learned.curve["step"])
    rows = np.unique(np.linspace(0, number - 1, min(number, MOST_POINTS)).round().astype(int))
    kept = {name: [values[row] for row in rows] for name, values in learned.curve.items()}
    del kept["seconds"]
    return {"curve": kept}


def _learn_to_budget(
    run: Run, documents: ShardDocuments, compute: Compute
) -> tuple[LearnedMask, np.ndarray]:
    """Learn with the number of documents that meets the shard's budget, which may be in tokens."""
    selection, costs = run.settings.selection, np.ones(len(documents.ids), np.int64)
    due = num_selected = budget.shard_units(selection, run.num_documents, documents.left)
    if selection.tokens is not None:
        costs = read_tokens(run, documents)
        num_selected = _prefix(costs, due)
    id_order = pc.rank(documents.ids).to_numpy()
    for attempt in range(MOST_ATTEMPTS):
        learned = _learn(run, "learning", documents, num_selected, compute, attempt)
        order = np.lexsort((id_order, -documents.quality, -learned.logits))
        reached = _prefix(costs[order], due)
        if abs(reached - num_selected) <= LEAST_CHANGE * num_selected:
            break
        num_selected = reached
    logits = learned.logits
    if reached != learned.metrics["num_selected"]:
        logits = logits - published.threshold_of(logits, reached)
    return learned, logits


def selected_alone(run: Run, shard: int, compute: Compute) -> pa.ChunkedArray:
    """Return the ids that a shard selects by itself, for comparison; write nothing.

    Limits are not applied, and a budget of tokens is met approximately. Errors are as in
    `learn_logits`.
    """
    documents = with_vectors(run, read_quality(run, shard))
    learned, logits = _learn_to_budget(run, documents, compute)
    Checkpoints(run, "learning", shard).clear()
    is_met = run.settings.selection.tokens is None
    return documents.ids.filter(learned.selected if is_met else logits > 0)


def _comparable(run: Run, documents: ShardDocuments) -> np.ndarray:
    """Return values that rank documents of all shards, by a method that does not learn."""
    if run.settings.selection.method == "top_quality":
        return documents.quality  # The threshold breaks ties in float32 by quality.
    seed = shard_seed(run.settings.seed, documents.shard)
    return np.random.Generator(np.random.PCG64(seed)).random(len(documents.ids))


def _prefix(costs: np.ndarray, due: int) -> int:
    """Count the first documents whose costs together reach *due*."""
    if due <= 0:
        return 0
    return min(int(np.searchsorted(np.cumsum(costs), due)) + 1, len(costs))


def _learn(
    run: Run,
    stage: str,
    documents: ShardDocuments,
    num_selected: int,
    compute: Compute,
    attempt: int = 0,
) -> LearnedMask:
    selection, shard = run.in_force.selection, documents.shard
    seed = shard_seed(run.settings.seed, shard)
    if not run.settings.has_vectors:
        return select_ranked(documents.quality, documents.ids, selection, num_selected, seed)
    from datamask.learning.learner import learn_mask

    machine = [compute.device_kind, compute.matmul, compute.working_set_bytes, attempt]
    how = (run.fingerprint(stage, shard), machine)
    checkpoints = Checkpoints(run, stage, shard, how)

    def learn(compute: Compute) -> LearnedMask:
        return learn_mask(
            documents.features,
            documents.quality,
            selection,
            num_selected,
            seed=seed,
            ids=documents.ids,
            scores=documents.scores,
            terms=terms_of(run),
            compute=compute,
            progress=partial(advance, is_bound=True),
            keeper=checkpoints,
        )

    return within_memory(shard, compute, learn)
