"""What a sweep found: the frontier of quality and diversity, and its knee."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from datamask.analysis.sweep_trials import KINDS, QUANTILES, trial_metrics, trials
from datamask.config.outputs import Sweep
from datamask.runs.run import Run

MOST_NAMES = 20


@dataclass(frozen=True, slots=True)
class Point:
    """What a choice achieves, over the shards of the sample; spreads are over seeds.

    Args:
        variant: as in `Choice`.
        quality_weight: lambda.
        quality: gain of mean quality over random, in deviations of random subsets.
        diversity: gain of the run's metric over random, likewise; above 0 is more diverse.
        quality_range: least and largest over the seeds.
        diversity_range: least and largest over the seeds.
        seeds: (quality, diversity) of every seed.
        mean_characters: of what is kept; None without text.
        mean_tokens: likewise.
        length_quantiles: of characters: mean over shards and seeds, by per cent.
        shift: by kind, what share of the kept documents would have to change names for the
            composition of the sample, in [0, 1] (total variation distance).
        groups: by kind and name, change of share, in [-1, 1]: the largest changes.
    """

    variant: str
    quality_weight: float
    quality: float
    diversity: float
    quality_range: tuple[float, float]
    diversity_range: tuple[float, float]
    seeds: tuple[tuple[float, float], ...]
    mean_characters: float | None
    mean_tokens: float | None
    length_quantiles: dict[str, float]
    shift: dict[str, float]
    groups: dict[str, dict[str, float]]


def frontier(run: Run, sweep: Sweep) -> list[Point]:
    """The points of a finished sweep, by variant and lambda.

    Raises:
        RunError: a trial is missing.
    """
    found: dict[tuple[str, float], dict[int, list[dict[str, Any]]]] = {}
    for trial in trials(run, sweep):
        key = (trial.choice.variant, trial.choice.quality_weight)
        record = trial_metrics(run, sweep, trial)
        found.setdefault(key, {}).setdefault(trial.seed, []).append(record)
    metric = _metric_name(run)
    return [_point(*key, seeds, metric) for key, seeds in found.items()]


def _metric_name(run: Run) -> str:
    from datamask.objectives.weighted import load_objective

    return load_objective(run.settings.selection.metric).name


def _point(
    variant: str, weight: float, seeds: dict[int, list[dict[str, Any]]], metric: str
) -> Point:
    pairs = tuple((_gain(records, "quality"), _gain(records, metric)) for records in seeds.values())
    quality, diversity = ([pair[axis] for pair in pairs] for axis in (0, 1))
    records = [record for part in seeds.values() for record in part]
    shares = {kind: _changes(records, kind) for kind in KINDS}
    largest = {
        kind: dict(sorted(changes.items(), key=lambda item: (-abs(item[1]), item[0]))[:MOST_NAMES])
        for kind, changes in shares.items()
        if len(changes) > 1
    }
    return Point(
        variant,
        weight,
        float(np.mean(quality)),
        float(np.mean(diversity)),
        (min(quality), max(quality)),
        (min(diversity), max(diversity)),
        pairs,
        _mean_length(records, "characters"),
        _mean_length(records, "tokens"),
        {
            str(q): float(np.mean([r["kept"]["quantiles"][str(q)] for r in records]))
            for q in QUANTILES
            if all("quantiles" in record["kept"] for record in records)
        },
        {
            kind: sum(abs(change) for change in changes.values()) / 2
            for kind, changes in shares.items()
            if len(changes) > 1
        },
        largest,
    )


def _gain(records: Sequence[dict[str, Any]], name: str) -> float:
    """Gain of a term over random in deviations: mean over shards, weighted by what they keep."""
    total = sum(record["selected"] for record in records)
    gain = 0.0
    for record in records:
        term = record["terms"][name]
        sign = 1.0 if term["maximise"] else -1.0
        # Without spread among random subsets there is nothing to gain.
        deviation = term["random_std"]
        if deviation:
            share = record["selected"] / total
            gain += share * sign * (term["selected"] - term["random"]) / deviation
    return gain


def _mean_length(records: Sequence[dict[str, Any]], unit: str) -> float | None:
    known = [record["kept"] for record in records if record["kept"][unit] is not None]
    documents = sum(facts["documents"] for facts in known)
    return sum(facts[unit] for facts in known) / documents if documents else None


def _changes(records: Sequence[dict[str, Any]], kind: str) -> dict[str, float]:
    """Share after less share before, by name."""
    counts: dict[str, dict[str, int]] = {"kept": {}, "source": {}}
    for record in records:
        for which, counted in counts.items():
            for name, count in record[which][kind].items():
                counted[name] = counted.get(name, 0) + count
    totals = {which: sum(counted.values()) or 1 for which, counted in counts.items()}
    return {
        name: counts["kept"].get(name, 0) / totals["kept"]
        - counts["source"].get(name, 0) / totals["source"]
        for name in sorted({*counts["kept"], *counts["source"]})
    }


def knee(points: Sequence[Point]) -> Point:
    """The recommended point of one variant: where giving up more of one buys little of the other.

    Both gains are brought to [0, 1] between the frontier's ends; the knee is the point farthest
    above the line that joins the best in quality with the best in diversity. Ties go to the larger
    lambda.

    Args:
        points: of one variant, at least one.
    """
    ordered = sorted(points, key=lambda point: -point.quality_weight)
    gains = [(point.quality, point.diversity) for point in ordered]
    return ordered[_knee(gains)]


def knee_by_seed(points: Sequence[Point]) -> list[float]:
    """The lambda that each seed alone would recommend."""
    ordered = sorted(points, key=lambda point: -point.quality_weight)
    return [
        ordered[_knee([point.seeds[place] for point in ordered])].quality_weight
        for place in range(len(ordered[0].seeds))
    ]


def _knee(gains: Sequence[tuple[float, float]]) -> int:
    scaled = []
    for axis in (0, 1):
        values = [gain[axis] for gain in gains]
        low, width = min(values), max(values) - min(values)
        scaled.append([(value - low) / width if width else 0.0 for value in values])
    # The line between (1, 0) and (0, 1): what lies above it has a sum over 1.
    sums = [quality + diversity for quality, diversity in zip(*scaled, strict=True)]
    best: int = max(range(len(sums)), key=lambda place: (round(sums[place], 9), -place))
    return best
