"""Moments of a score in each shard, and merged in order of shards: the same on every machine."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa

from datamask.config.inputs import LARGEST, Score
from datamask.errors import InputError
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run


def moments(values: pa.Array) -> dict[str, Any]:
    """Count, extremes, mean and summed squared deviations of the values that are not null."""
    present = values.drop_null().to_numpy(zero_copy_only=False)
    metrics: dict[str, Any] = {"missing": values.null_count, "count": len(present)}
    if not len(present):
        return {**metrics, "min": None, "max": None, "mean": 0.0, "m2": 0.0}
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(np.mean(present))
        m2 = float(np.sum(np.square(present - mean)))
    return {
        **metrics,
        "min": float(present.min()),
        "max": float(present.max()),
        "mean": mean if np.isfinite(mean) else None,
        "m2": m2 if np.isfinite(m2) else None,
    }


def scale_of(run: Run, receipts: list[Receipt], score: Score) -> tuple[float, float]:
    """Offset and divisor of a normalisation, (value - offset) / divisor; 0 and 1 for `none`.

    They follow from the moments of all shards, by their *receipts* of `scores`, with filled values.
    A score that is the same everywhere becomes 0.

    Raises:
        InputError: the values are too large for a mean and a deviation, or (`none`) for float32.
    """
    total, mean, m2, low, high = 0, 0.0, 0.0, math.inf, -math.inf
    for receipt in receipts:
        metrics = receipt.metrics["scores"][score.name]
        extremes = (metrics["min"] or 0.0, metrics["max"] or 0.0)
        is_large = score.normalisation == "none" and max(map(abs, extremes)) > LARGEST
        if is_large or metrics["mean"] is None or metrics["m2"] is None:
            problem = f"values too large for normalisation {score.normalisation}; use rank"
            path = run.path("scores", receipt.unit)
            raise InputError(problem, path=path, shard=receipt.unit, column=score.name)
        parts = [[metrics[key] for key in ("count", "mean", "m2", "min", "max")]]
        if (fill := score.filled) is not None:
            parts.append([metrics["missing"], fill, 0.0, fill, fill])
        for count, mean_of_part, m2_of_part, least, largest in parts:
            if not count:
                continue
            # Both sets together: Chan et al. 1979, eq. 2.1.
            before, total, delta = total, total + count, mean_of_part - mean
            mean += delta * (count / total)
            m2 += m2_of_part
            if before:
                m2 += delta * delta * (before * (count / total))
            low, high = min(low, least), max(high, largest)
    if score.normalisation == "none" or not total:
        return 0.0, 1.0
    if low == high:
        return low, 1.0
    if score.normalisation == "z-score":
        return mean, math.sqrt(m2 / total) or 1.0
    return low, high - low
