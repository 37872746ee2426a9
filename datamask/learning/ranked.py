"""Methods that need no vectors, `random` and `top_quality`, without torch, which imports slowly.

They select what they select with vectors; only quality is compared with random subsets. Its mean
over S of N documents drawn without replacement has a variance of (1 - S/N) / S Var, Var with N - 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datamask.config.selection import Selection
from datamask.learning import published
from datamask.objectives.level import Level


@dataclass(frozen=True, slots=True)
class LearnedMask:
    """The result of learning one shard.

    Args:
        logits: float32, shape N: marginal gain minus the threshold (`datamask.learning.published`);
            above 0 for selected documents, which are the first S by (logit, quality, id).
        selected: bool, shape N.
        curve: columns `step`, `seconds`, `objective` and one per term (raw values).
        metrics: JSON: the values of the mask, of random subsets and of top quality (`judge`).
    """

    logits: np.ndarray
    selected: np.ndarray
    curve: dict[str, list[float]]
    metrics: dict[str, Any]


def rank(quality: np.ndarray, ids: pa.ChunkedArray, method: str, seed: int) -> np.ndarray:
    """The rows of documents in the order of a method, best first; int64, shape N."""
    table = pa.table({"quality": quality, "id": ids})
    keys = [("quality", "descending"), ("id", "ascending")]
    order = np.asarray(pc.sort_indices(table, sort_keys=keys).to_numpy(), np.int64)
    if method == "random":
        drawn = np.random.Generator(np.random.PCG64(seed)).permutation(len(order))
        order = order[np.argsort(-drawn, kind="stable")]
    return order


def select_ranked(
    quality: np.ndarray, ids: pa.ChunkedArray, selection: Selection, num_selected: int, seed: int
) -> LearnedMask:
    """Select the first S of N documents in the order of the method (see `learner.learn_mask`)."""
    has_choice = 0 < num_selected < len(quality)
    order = rank(quality, ids, selection.method if has_choice else "top_quality", seed)
    logits = published.by_rank(order, num_selected)
    metrics = compare_quality(quality, logits > 0, selection.scale_terms)
    stopped_by = "steps" if has_choice else "all selected"
    metrics |= {"estimator": selection.method, "steps": 0, "stopped_by": stopped_by}
    return LearnedMask(logits, logits > 0, {}, metrics)


def compare_quality(quality: np.ndarray, selected: np.ndarray, scale_terms: bool) -> dict[str, Any]:
    """Compare the quality of a mask with random subsets and top quality, as `learner.judge`."""
    size, number = int(selected.sum()), len(quality)
    if not size:
        return quality_metrics(0, number, 0.0, 0.0, 0.0, 0.0, scale_terms)
    level = Level.of(quality)
    learned = level.learned(quality)  # its square is representable, however small quality is
    spread = level.unit * float(learned.std(ddof=1)) if number > 1 else 0.0
    best = float(np.partition(quality, number - size)[number - size :].mean())
    ours, mean = float(quality[selected].mean()), float(quality.mean())
    return quality_metrics(size, number, ours, mean, spread, best, scale_terms)


def quality_metrics(
    size: int,
    number: int,
    ours: float,
    mean: float,
    spread: float,
    best: float,
    scale_terms: bool,
) -> dict[str, Any]:
    """The metrics of a mask by quality alone, as `learner.judge` returns them.

    *size* is S, *number* N, *ours*, *mean* and *best* the mean quality of the mask, of all N and of
    the S best; *spread* is the standard deviation of all N, with N - 1.
    """
    deviation = math.sqrt((1 - size / number) / size) * spread if size else 0.0
    values = {"selected": ours, "random": mean, "top_quality": best}
    scale = (scale_terms and deviation) or 1.0
    return {
        "terms": {"quality": {**values, "random_std": deviation, "maximise": True}},
        "objective": {kind: value / scale for kind, value in values.items()},
        "scales": {"quality": scale},
        "num_selected": size,
        "optimality_gap": None,
    }
