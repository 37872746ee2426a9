"""Moments of a score in each shard, merged in order of shards: the same on every machine."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pyarrow as pa

from datamask.config.scores import LARGEST, Score
from datamask.errors import InputError
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run

MOST = sys.float_info.max / 2
"""Largest magnitude of a score: the difference of two is a float64 too."""


def moments(values: pa.Array) -> dict[str, Any]:
    """Return count, extremes, mean and standard deviation (with N) of the values that are not null.

    Values are divided by the largest before they are squared, because squares of tiny or huge
    values do not fit a float64.
    """
    present = values.drop_null().to_numpy(zero_copy_only=False)
    metrics: dict[str, Any] = {"missing": values.null_count, "count": len(present)}
    if not len(present):
        return {**metrics, "min": None, "max": None, "mean": 0.0, "deviation": 0.0}
    largest = float(np.abs(present).max()) or 1.0
    return {
        **metrics,
        "min": float(present.min()),
        "max": float(present.max()),
        "mean": largest * float(np.mean(present / largest)),
        "deviation": largest * float(np.std(present / largest)),
    }


def scale_of(run: Run, receipts: list[Receipt], score: Score) -> tuple[float, float]:
    """Return offset and divisor of a normalisation, (value - offset) / divisor; 0 and 1 for `none`.

    They follow from the moments of all shards, by their *receipts* of `scores`, with filled values.
    A score that is the same everywhere becomes 0.

    Raises:
        InputError: values are too large: for a difference, or (`none`) as quality.
    """
    parts: list[list[float]] = []
    for receipt in receipts:
        metrics = receipt.metrics["scores"][score.name]
        summary = [metrics[key] for key in ("count", "mean", "deviation", "min", "max")]
        if metrics["count"]:
            parts.append(summary)
            if max(map(abs, summary[3:])) > (LARGEST if score.normalisation == "none" else MOST):
                problem = f"values too large for normalisation {score.normalisation}; use rank"
                path = run.path("scores", receipt.unit)
                raise InputError(problem, path=path, shard=receipt.unit, column=score.name)
        if score.filled is not None and metrics["missing"]:
            parts.append([metrics["missing"], score.filled, 0.0, score.filled, score.filled])
    if score.normalisation == "none" or not parts:
        return 0.0, 1.0
    _, _, _, lows, highs = zip(*parts, strict=True)
    low, high = min(lows), max(highs)
    if low == high:
        return low, 1.0
    if score.normalisation == "min-max":
        return low, high - low
    return _mean_and_deviation(parts, high - low)


def _mean_and_deviation(parts: list[list[float]], unit: float) -> tuple[float, float]:
    """Merge *parts* with count, mean and deviation; values are divided by *unit*."""
    total, mean, m2 = 0.0, 0.0, 0.0
    for count, mean_of_part, deviation, *_ in parts:
        # Merge two sets: Chan et al. 1979, eq. 2.1.
        before, total, delta = total, total + count, mean_of_part - mean
        mean += delta * (count / total)
        m2 += count * (deviation / unit) ** 2
        if before:
            m2 += (delta / unit) ** 2 * (before * (count / total))
    return mean, unit * math.sqrt(m2 / total)
