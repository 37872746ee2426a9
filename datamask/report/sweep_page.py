"""Running a sweep, and its page: the frontier of quality and diversity, and its knee."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from datamask.analysis.frontier import Point, frontier, knee, knee_by_seed
from datamask.analysis.sweep_trials import BASE, chosen_shards, trials, try_choice
from datamask.config.compute import Compute
from datamask.config.outputs import Sweep
from datamask.evaluation.weights import TrainedWeight, trained_weights
from datamask.report.chart_data import SWEEP_POINTS
from datamask.report.charts import Chart, Series, look, write_pictures
from datamask.report.rendering import render
from datamask.runs.files import write_text_file
from datamask.runs.followed import selection_of
from datamask.runs.in_progress import working
from datamask.runs.retrying import retried
from datamask.runs.run import Run
from datamask.storage.stopping import stoppable_threads

logger = logging.getLogger(__name__)


def run_sweep(
    run: Run,
    sweep: Sweep,
    compute: Compute,
    progress: Callable[[str, int, int], None] | None = None,
) -> Path:
    """Run every missing trial, then write the page.

    Returns:
        `RUN/sweep/sweep.html`.

    Raises:
        RunError: quality or embeddings are missing.
        SettingsError: a value is out of its range.
    """
    wanted = trials(run, sweep)
    logger.info("sweep: %d trials on %d shards", len(wanted), len({t.shard for t in wanted}))
    with working("sweep"), stoppable_threads(compute.workers) as pool:
        work = (functools.partial(try_choice, run, trial, compute) for trial in wanted)
        done = pool.map(retried, work)
        for number, _ in enumerate(done, 1):
            if progress is not None:
                progress("sweep", number, len(wanted))
    return write_sweep(run, sweep)


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The lambda that a sweep recommends, or its knee if no model was trained.

    Args:
        quality_weight: lambda.
        current: lambda of the run.
        reason: a clause that says why.
        trained: what trained models show of each lambda, the best first; empty if the knee decides.
    """

    quality_weight: float
    current: float
    reason: str
    trained: list[TrainedWeight]

    @property
    def name(self) -> str:
        """What the lambda is: a knee is no recommendation."""
        return "recommended" if self.trained else "knee"

    @property
    def text(self) -> str:
        """The recommendation in sentences."""
        is_same = self.quality_weight == self.current
        has = "has this value already" if is_same else f"has {self.current:g}"
        setting = f"`selection.quality_weight={self.quality_weight:g}`"
        text = f"{self.name.capitalize()}: {setting} ({self.reason}); the run {has}."
        if self.trained:
            return text
        text += " The knee is not what trains best; sweep.by=evaluation trains models to find that."
        return text


def recommend(run: Run, sweep: Sweep, points: Sequence[Point]) -> Recommendation:
    """The knee of the run's own selection, or what trained models say.

    Raises:
        RunError: the models are not trained.
    """
    base = by_variant(points)[BASE]
    if sweep.by == "knee":
        weight, trained = knee(base).quality_weight, []
        reason = "a further gain on one side costs more on the other"
        if len(sweep.seeds) > 1:
            seeds = ", ".join(f"{weight:g}" for weight in sorted(set(knee_by_seed(base))))
            reason += f"; single seeds give {seeds}"
    else:
        trained = trained_weights(run, sweep.quality_weights)
        best, *others = trained
        weight = best.quality_weight
        reason = f"models trained on it need the fewest bits per byte ({best.bits_per_byte:.4f})"
        undecided = [f"{row.quality_weight:g}" for row in others if row.verdict == "undecided"]
        if undecided:
            reason += f", but the difference from λ = {', '.join(undecided)} is undecided"
    return Recommendation(weight, selection_of(run).quality_weight, reason, trained)


def by_variant(points: Sequence[Point]) -> dict[str, list[Point]]:
    """The points of each variant, by lambda."""
    variants: dict[str, list[Point]] = {}
    for point in points:
        variants.setdefault(point.variant, []).append(point)
    return variants


def frontier_chart(points: Sequence[Point], metric: str) -> Chart:
    """Quality against diversity, a line per variant with lambda at its points."""
    series = []
    for number, (name, line) in enumerate(by_variant(points).items()):
        best = knee(line)
        labels = [
            f"λ {point.quality_weight:g}{' (knee)' if point is best else ''}" for point in line
        ]
        series.append(
            Series(
                name=name,
                x=[point.quality for point in line],
                y=[point.diversity for point in line],
                ranges=[point.diversity_range for point in line],
                labels=labels,
                hover=[
                    f"{label}\nquality {point.quality:.2f} "
                    f"({point.quality_range[0]:.2f} to {point.quality_range[1]:.2f})\n"
                    f"{_diversity(metric)} {point.diversity:.2f} "
                    f"({point.diversity_range[0]:.2f} to {point.diversity_range[1]:.2f})"
                    for label, point in zip(labels, line, strict=True)
                ],
                **look(number),
            )
        )
    return Chart(
        key="frontier",
        title="quality against diversity",
        kind="lines",
        x="quality (gain over random, σ)",
        y=f"{_diversity(metric)} (gain over random, σ)",
        series=tuple(series),
        note="One point per λ; bars span the seeds. Up and right is better. σ: the standard "
        f"deviation over random subsets of the same size. The run's metric, {metric}, measures the "
        "diversity of every selection, also of those that were learned with another metric.",
    )


def _diversity(metric: str) -> str:
    """The name of a gain in diversity: more than one metric may be swept."""
    return f"diversity by {metric}"


def write_sweep(run: Run, sweep: Sweep) -> Path:
    """Write page and pictures of a finished sweep under `RUN/sweep/`. Raises as `recommend`.

    Raises:
        RunError: a trial is missing.
    """
    points, selection = frontier(run, sweep), run.settings.selection
    variants, recommended = by_variant(points), recommend(run, sweep, points)
    base, chart = variants[BASE], frontier_chart(points, selection.metric)
    page = render(
        "sweep.html",
        chart=chart,
        title=run.root.absolute().name,
        recommended=recommended,
        by_weight={point.quality_weight: point for point in base},
        diversity=_diversity(selection.metric),
        scope=selection.scope,
        points=points,
        knees={name: knee(line) for name, line in variants.items()},
        num_shards=len(chosen_shards(run, sweep)),
        of_shards=run.num_shards,
        num_seeds=len(sweep.seeds),
        settings=yaml.safe_dump(sweep.model_dump(mode="json"), sort_keys=False),
    )
    write_pictures(run.storage, "sweep/pictures", [chart])
    swept = {"metric": selection.metric, "points": [(p.quality_weight, *p.gains) for p in base]}
    write_text_file(run.root / SWEEP_POINTS, json.dumps(swept), run.storage)
    path = run.root / "sweep" / "sweep.html"
    write_text_file(path, page, run.storage)
    return path


def sweep_rows(points: Sequence[Point], metric: str) -> list[dict[str, Any]]:
    """The points as rows of a table; *metric* measures diversity."""
    diversity = _diversity(metric)
    knees = {name: knee(line) for name, line in by_variant(points).items()}
    return [
        {
            "variant": point.variant,
            "lambda": point.quality_weight,
            "quality": round(point.quality, 3),
            "quality, by seed": "{:.3f} to {:.3f}".format(*point.quality_range),
            diversity: round(point.diversity, 3),
            f"{diversity}, by seed": "{:.3f} to {:.3f}".format(*point.diversity_range),
            "mean characters": point.mean_characters and round(point.mean_characters, 1),
            "knee": "knee" if knees[point.variant] is point else "",
        }
        for point in points
    ]


def sweep_markdown(run: Run, sweep: Sweep, points: Sequence[Point]) -> str:
    """The recommendation and the table, for Prefect's artifact. Raises as `recommend`."""
    recommended = recommend(run, sweep, points)
    return render(
        "sweep.md",
        recommended=recommended,
        rows=sweep_rows(points, run.settings.selection.metric),
    )
