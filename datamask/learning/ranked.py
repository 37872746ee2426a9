"""Methods that need no vectors, `random` and `top_quality`, without torch, which imports slowly.

They select the same documents as with vectors; only quality is compared with random documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datamask.config.selection import Selection


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
    """Return the rows of documents in the order of a method, best first; int64, shape N."""
    table = pa.table({"quality": quality, "id": ids})
    keys = [("quality", "descending"), ("id", "ascending")]
    order = np.asarray(pc.sort_indices(table, sort_keys=keys).to_numpy(), np.int64)
    if method == "random":
        drawn = np.random.Generator(np.random.PCG64(seed)).permutation(len(order))
        order = order[np.argsort(-drawn, kind="stable")]
    return order


def by_rank(order: np.ndarray, num_selected: int) -> np.ndarray:
    """Rank a method without gains: distance in documents from the threshold, over N; float32.

    *order* has the rows, best first.
    """
    logits = np.empty(len(order), np.float32)
    logits[order] = (num_selected - 0.5 - np.arange(len(order))) / max(len(order), 1)
    return logits


def select_ranked(
    quality: np.ndarray, ids: pa.ChunkedArray, selection: Selection, num_selected: int, seed: int
) -> LearnedMask:
    """Select the first S of N documents in the order of the method (see `learner.learn_mask`)."""
    has_choice = 0 < num_selected < len(quality)
    order = rank(quality, ids, selection.method if has_choice else "top_quality", seed)
    logits = by_rank(order, num_selected)
    metrics = compare_quality(quality, logits > 0, selection.scale_terms)
    stopped_by = "steps" if has_choice else "all selected"
    metrics |= {"estimator": selection.method, "steps": 0, "stopped_by": stopped_by}
    return LearnedMask(logits, logits > 0, {}, metrics)


def compare_quality(quality: np.ndarray, selected: np.ndarray, scale_terms: bool) -> dict[str, Any]:
    """Compare the quality of a mask with random subsets and top quality, as `learner.judge`."""
    size, number = int(selected.sum()), len(quality)
    if not size:
        return quality_metrics(0, 0.0, 0.0, 0.0, scale_terms)
    best = float(np.partition(quality, number - size)[number - size :].mean())
    ours, mean = float(quality[selected].mean()), float(quality.mean())
    return quality_metrics(size, ours, mean, best, scale_terms)


def quality_metrics(
    size: int, ours: float, mean: float, best: float, scale_terms: bool
) -> dict[str, Any]:
    """Return the metrics of a mask by quality alone, as `learner.judge` does.

    *size* is S, and *ours*, *mean* and *best* are the mean quality of the mask, of all documents
    and of the S best documents.
    """
    values = {"selected": ours, "random": mean, "top_quality": best}
    scale = (scale_terms and best - mean) or 1.0
    return {
        "terms": {"quality": {**values, "best": best, "error": 0.0, "maximise": True}},
        "objective": {kind: value / scale for kind, value in values.items()},
        "scales": {"quality": scale},
        "num_selected": size,
        "optimality_gap": None,
    }


def ranges_of(terms: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the gain of each term's best selection over random documents, where known."""
    return {
        name: abs(term["best"] - term["random"])
        for name, term in terms.items()
        if term["best"] is not None
    }
