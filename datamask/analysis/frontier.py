"""Results of a sweep: the frontier of quality and diversity, and its knee."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from datamask.analysis.sweep_trials import trial_metrics, trials
from datamask.config.outputs import Sweep
from datamask.runs.run import Run


@dataclass(frozen=True, slots=True)
class Point:
    """Result of a choice, averaged over shards and seeds.

    Args:
        variant: as in `Choice`.
        quality_weight: lambda.
        quality: gain of mean quality over random, in standard deviations of random subsets.
        diversity: gain of the run's metric over random, likewise; positive is more diverse.
        quality_range: minimum and maximum over the seeds.
        diversity_range: minimum and maximum over the seeds.
        seeds: (quality, diversity) of every seed.
        gains: of quality and diversity, in the units of the terms; positive is better.
        mean_characters: of the selected documents; None without text.
        mean_tokens: of the selected documents; None without token counts.
    """

    variant: str
    quality_weight: float
    quality: float
    diversity: float
    quality_range: tuple[float, float]
    diversity_range: tuple[float, float]
    seeds: tuple[tuple[float, float], ...]
    gains: tuple[float, float]
    mean_characters: float | None
    mean_tokens: float | None


def frontier(run: Run, sweep: Sweep) -> list[Point]:
    """The points of a finished sweep, by variant and lambda.

    Raises:
        RunError: a trial is missing.
    """
    # Imported late: flows import this module, and torch takes seconds to import.
    from datamask.objectives.weighted import load_objective

    records: dict[tuple[str, float], dict[int, list[dict[str, Any]]]] = {}
    for trial in trials(run, sweep):
        key = (trial.choice.variant, trial.choice.quality_weight)
        record = trial_metrics(run, trial)
        records.setdefault(key, {}).setdefault(trial.seed, []).append(record)
    metric = load_objective(run.settings.selection.metric).name
    return [_point(*key, seeds, metric) for key, seeds in records.items()]


def _point(
    variant: str, weight: float, seeds: dict[int, list[dict[str, Any]]], metric: str
) -> Point:
    pairs = tuple((_gain(records, "quality"), _gain(records, metric)) for records in seeds.values())
    quality, diversity = zip(*pairs, strict=True)
    records = [record for part in seeds.values() for record in part]
    unscaled = [_gain(records, name, scaled=False) for name in ("quality", metric)]
    return Point(
        variant,
        weight,
        float(np.mean(quality)),
        float(np.mean(diversity)),
        (min(quality), max(quality)),
        (min(diversity), max(diversity)),
        pairs,
        (unscaled[0], unscaled[1]),
        _mean_length(records, "characters"),
        _mean_length(records, "tokens"),
    )


def _gain(records: Sequence[dict[str, Any]], name: str, *, scaled: bool = True) -> float:
    """Gain of a term over random, in standard deviations or not: mean by selected documents."""
    total = sum(record["selected"] for record in records)
    gain = 0.0
    for record in records:
        term = record["terms"][name]
        sign = 1.0 if term["maximise"] else -1.0
        if term["random_std"]:
            share = record["selected"] / total
            unit = term["random_std"] if scaled else 1.0
            gain += share * sign * (term["selected"] - term["random"]) / unit
    return gain


def _mean_length(records: Sequence[dict[str, Any]], unit: str) -> float | None:
    known = [record["kept"] for record in records if record["kept"][unit] is not None]
    documents = sum(facts["documents"] for facts in known)
    return sum(facts[unit] for facts in known) / documents if documents else None


def knee(points: Sequence[Point]) -> Point:
    """The recommended point of one variant.

    Both gains are scaled to [0, 1] between the ends of the frontier. The knee is the point farthest
    above the line from the point of best quality to that of best diversity; a tie goes to the
    larger lambda. *points* are of one variant.
    """
    return _knee(points, [(point.quality, point.diversity) for point in points])


def knee_by_seed(points: Sequence[Point]) -> list[float]:
    """The lambda that each seed alone recommends."""
    by_seed = zip(*(point.seeds for point in points), strict=True)
    return [_knee(points, gains).quality_weight for gains in by_seed]


def _knee(points: Sequence[Point], gains: Sequence[tuple[float, float]]) -> Point:
    sums = [0.0] * len(points)
    for values in zip(*gains, strict=True):
        low, width = min(values), max(values) - min(values)
        for place, value in enumerate(values):
            sums[place] += (value - low) / width if width else 0.0
    # Points above the line from (1, 0) to (0, 1) have a sum above 1.
    _, _, best = max(
        (round(total, 9), point.quality_weight, place)
        for place, (total, point) in enumerate(zip(sums, points, strict=True))
    )
    return points[best]
