"""Moments of a score in each shard, and merged in order of shards: the same on every machine."""

from __future__ import annotations

import math
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class ScoreMoments:
    """Count, extremes, mean and sum of squared deviations of a score."""

    count: int = 0
    min: float = 0.0
    max: float = 0.0
    mean: float = 0.0
    m2: float = 0.0

    def merge(self, other: ScoreMoments) -> ScoreMoments:
        """The moments of both sets together (Chan et al. 1979, eq. 2.1)."""
        count = self.count + other.count
        if not other.count or not self.count:
            return other if other.count else self
        delta = other.mean - self.mean
        return ScoreMoments(
            count,
            min(self.min, other.min),
            max(self.max, other.max),
            self.mean + delta * (other.count / count),
            self.m2 + other.m2 + delta * delta * (self.count * (other.count / count)),
        )

    def scale(self, normalisation: str) -> tuple[float, float]:
        """Offset and divisor of a normalisation: (value - offset) / divisor; 0 and 1 for `none`.

        A score that is the same everywhere becomes 0.
        """
        if normalisation == "none":
            return 0.0, 1.0
        if self.min == self.max:
            return self.min, 1.0
        if normalisation == "z-score":
            return self.mean, math.sqrt(self.m2 / self.count) or 1.0
        return self.min, self.max - self.min


def merged_moments(run: Run, receipts: list[Receipt], score: Score) -> ScoreMoments:
    """The moments of a score over all shards, by their *receipts* of `scores`, with filled values.

    Raises:
        InputError: the values are too large for a mean and a deviation, or (`none`) for float32.
    """
    merged = ScoreMoments()
    for receipt in receipts:
        metrics = receipt.metrics["scores"][score.name]
        extremes = (metrics["min"] or 0.0, metrics["max"] or 0.0)
        is_large = score.normalisation == "none" and max(map(abs, extremes)) > LARGEST
        if is_large or metrics["mean"] is None or metrics["m2"] is None:
            problem = f"values too large for normalisation {score.normalisation}; use rank"
            path = run.path("scores", receipt.unit)
            raise InputError(problem, path=path, shard=receipt.unit, column=score.name)
        keys = ("count", "min", "max", "mean", "m2")
        merged = merged.merge(ScoreMoments(*(metrics[key] for key in keys)))
        if (fill := score.filled) is not None and metrics["missing"]:
            merged = merged.merge(ScoreMoments(metrics["missing"], fill, fill, fill))
    return merged
