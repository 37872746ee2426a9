"""Comparators for mask learning, selectable as `selection.method` to run ablations.

Each answers with logits: the chosen documents have the highest, in the order of choice, so that the
top S of the logits are the selection and everything downstream is the same as for a learned mask.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from datamask.config import Selection


def select(
    method: str,
    features: np.ndarray,
    quality: np.ndarray,
    num_selected: int,
    selection: Selection,
    *,
    seed: int,
    ids: Sequence[str] | np.ndarray | None = None,
) -> np.ndarray:
    """Choose documents by a comparator.

    Args:
        method: one of `Selection.method` but `mask`.
        features: N x D, float16 or float32, unit rows.
        quality: shape N, finite.
        num_selected: S, in [0, N].
        selection: metric and quality weight, for the methods that use them.
        seed: for the methods that draw.
        ids: shape N; they settle ties where a method has any. Rows do if not given.

    Returns:
        float32 logits, shape N.

    Raises:
        SettingsError: the method does not serve the metric.
    """
    from datamask.baselines import density, greedy, semdedup

    # Texts as objects: an array of fixed width would pad them to the longest, and cut NULs off.
    names = np.arange(len(features)) if ids is None else np.asarray(ids, object)
    order = np.argsort(names, kind="stable")
    # Ties fall to the better quality, then to the id: both by working in that order throughout.
    order = order[np.argsort(-np.asarray(quality, np.float64)[order], kind="stable")]
    given, scores = features[order], np.asarray(quality, np.float64)[order]
    generator = np.random.Generator(np.random.PCG64(seed))
    if method == "random":
        ranked = generator.permutation(len(given)).astype(np.float64)
    elif method == "top_quality":
        ranked = scores
    elif method == "direct_logits":
        ranked = density.quality_minus_density(given, scores, selection.quality_weight)
    elif method == "semdedup":
        ranked = semdedup.representatives(given, scores, num_selected, seed)
    else:
        chosen = greedy.choose(method, given, scores, num_selected, selection, generator)
        ranked = np.zeros(len(given))
        ranked[chosen] = np.arange(len(chosen), 0, -1)
    logits = np.empty(len(given), dtype=np.float32)
    # Ranks, not values: float32 would merge scores that differ in float64.
    place = np.argsort(np.argsort(-ranked, kind="stable"), kind="stable")
    logits[order] = -place.astype(np.float32) / max(len(given), 1)
    return logits
