"""Running a sweep, and its page: the frontier of quality and diversity, its knee, and groups."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from datamask.analysis.composition import KINDS
from datamask.analysis.frontier import Point, frontier, knee, knee_by_seed
from datamask.analysis.sweep_trials import BASE, chosen_shards, trials, try_choice
from datamask.config.compute import Compute
from datamask.config.outputs import Sweep
from datamask.evaluation.weights import TrainedWeight, trained_weights
from datamask.report.charts import Chart, Series, look
from datamask.report.pictures import write_pictures
from datamask.report.rendering import render
from datamask.runs.files import replace_file
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
        work = (functools.partial(try_choice, run, sweep, trial, compute) for trial in wanted)
        done = pool.map(retried, work)
        for number, _ in enumerate(done, 1):
            if progress is not None:
                progress("sweep", number, len(wanted))
    return write_sweep(run, sweep)


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The lambda that a sweep recommends.

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
    def advice(self) -> str:
        """What to do with the run."""
        if self.quality_weight == self.current:
            return "the run has this value already"
        return f"the run has {self.current:g}"


def recommend(run: Run, sweep: Sweep, points: Sequence[Point]) -> Recommendation:
    """The knee of the run's own selection, or what trained models say.

    Raises:
        RunError: the models are not trained.
    """
    base = by_variant(points)[BASE]
    if sweep.by == "knee":
        weight, trained = knee(base).quality_weight, []
        reason = "the knee of the trade-off: a further gain on one side costs more on the other"
        if len(sweep.seeds) > 1:
            seeds = ", ".join(f"{one:g}" for one in sorted(set(knee_by_seed(base))))
            reason += f"; single seeds give {seeds}"
    else:
        trained = trained_weights(run, sweep.quality_weights)
        best, *others = trained
        weight = best.quality_weight
        reason = f"models trained on it need the fewest bits per byte ({best.bits_per_byte:.4f})"
        undecided = [f"{one.quality_weight:g}" for one in others if one.verdict == "undecided"]
        if undecided:
            reason += f", but the difference from λ = {', '.join(undecided)} is undecided"
    return Recommendation(weight, run.settings.selection.quality_weight, reason, trained)


def by_variant(points: Sequence[Point]) -> dict[str, list[Point]]:
    """The points of each variant, by lambda."""
    found: dict[str, list[Point]] = {}
    for point in points:
        found.setdefault(point.variant, []).append(point)
    return found


def sweep_charts(points: Sequence[Point], metric: str) -> list[Chart]:
    """Frontier, and gains, lengths and composition over lambda; *metric* measures diversity."""
    variants = by_variant(points)
    base = variants[BASE]
    deviations = "{:.2f} deviations"
    quality = [p.quality for p in base], [p.quality_range for p in base]
    diversity = [p.diversity for p in base], [p.diversity_range for p in base]
    charts = [
        _frontier(variants, metric),
        _over_lambda(
            "sweep-gains",
            "gain of each term",
            "gain over random (σ)",
            [
                _series(base, "quality", 1, deviations, *quality),
                _series(base, _diversity(metric), 2, deviations, *diversity),
            ],
            f"Selection as in the run; bars span the seeds. {SIGMA}",
        ),
    ]
    lengths = [
        _series(part, name, place, "{:,.0f} characters", [p.mean_characters for p in part])
        for place, (name, part) in enumerate(variants.items())
        if all(point.mean_characters is not None for point in part)
    ]
    if lengths:
        title = "mean length of what is kept"
        charts.append(_over_lambda("sweep-length", title, "characters", lengths))
    kinds = [kind for kind in KINDS if any(kind in point.shift for point in points)]
    if kinds:
        charts.append(
            _over_lambda(
                "sweep-composition",
                "change of composition",
                "documents moved (%)",
                [
                    _series(base, KINDS[kind], i, "{:.2f}%", [100 * p.shift[kind] for p in base])
                    for i, kind in enumerate(kinds)
                ],
                "Share of the selected documents that would have to change groups to match the "
                "composition of the candidates; selection as in the run.",
            )
        )
    return charts


def _series(
    points: Sequence[Point],
    name: str,
    place: int,
    shown: str,
    values: Sequence[float | None],
    ranges: Sequence[tuple[float, float]] = (),
) -> Series:
    """Values over lambda, with their ranges over the seeds if given."""
    weights = [point.quality_weight for point in points]
    return Series(
        name=name,
        x=weights,
        y=values,
        ranges=ranges,
        hover=[f"λ {x:g}: {shown.format(y)}" for x, y in zip(weights, values, strict=True)],
        **look(place),
    )


def _over_lambda(key: str, title: str, y: str, series: list[Series], note: str = "") -> Chart:
    x = "λ (1: quality alone, 0: diversity alone)"
    return Chart(key=key, title=title, kind="lines", x=x, y=y, note=note, series=tuple(series))


SIGMA = "σ: the standard deviation over random subsets of the same size."


def _diversity(metric: str) -> str:
    """The name of a gain in diversity: more than one metric may be swept."""
    return f"diversity by {metric}"


def _frontier(variants: dict[str, list[Point]], metric: str) -> Chart:
    series = []
    for place, (name, points) in enumerate(variants.items()):
        best = knee(points)
        series.append(
            Series(
                name=name,
                x=[point.quality for point in points],
                y=[point.diversity for point in points],
                ranges=[point.diversity_range for point in points],
                hover=[
                    f"λ {point.quality_weight:g}{' (knee)' if point is best else ''}\n"
                    f"quality {point.quality:.2f} "
                    f"({point.quality_range[0]:.2f} to {point.quality_range[1]:.2f})\n"
                    f"{_diversity(metric)} {point.diversity:.2f} "
                    f"({point.diversity_range[0]:.2f} to {point.diversity_range[1]:.2f})"
                    for point in points
                ],
                **look(place),
            )
        )
    best = knee(variants[BASE])
    series.append(
        Series(
            name=f"knee, λ {best.quality_weight:g}",
            x=[best.quality],
            y=[best.diversity],
            colour="#D55E00",
            style=6,
            size=12,
            hover=[f"knee: λ {best.quality_weight:g}"],
        )
    )
    return Chart(
        key="frontier",
        title="quality against diversity",
        kind="lines",
        x="quality (gain over random, σ)",
        y=f"{_diversity(metric)} (gain over random, σ)",
        series=tuple(series),
        note=f"One point per λ; bars span the seeds. Up and right is better. {SIGMA} The run's "
        f"metric, {metric}, measures the diversity of every selection, also of those that were "
        "learned with another metric.",
    )


def write_sweep(run: Run, sweep: Sweep) -> Path:
    """Write page and pictures of a finished sweep under `RUN/sweep/`. Raises as `recommend`.

    Raises:
        RunError: a trial is missing.
    """
    points, selection = frontier(run, sweep), run.settings.selection
    variants, recommended = by_variant(points), recommend(run, sweep, points)
    base, charts = variants[BASE], sweep_charts(points, selection.metric)
    changes = {title: _changes(base, kind) for kind, title in KINDS.items()}
    page = render(
        "sweep.html",
        charts=charts,
        title=run.root.absolute().name,
        recommended=recommended,
        by_weight={point.quality_weight: point for point in base},
        diversity=_diversity(selection.metric),
        scope=selection.scope,
        points=points,
        knees={name: knee(part) for name, part in variants.items()},
        num_shards=len(chosen_shards(run, sweep)),
        of_shards=run.num_shards,
        num_seeds=len(sweep.seeds),
        changes={title: rows for title, rows in changes.items() if rows},
        weights=[f"λ = {point.quality_weight:g}" for point in base],
        settings=yaml.safe_dump(sweep.model_dump(mode="json"), sort_keys=False),
    )
    write_pictures(run.storage, "sweep/pictures", charts)
    path = run.root / "sweep" / "sweep.html"
    with replace_file(path, run.storage) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return path


def _changes(points: Sequence[Point], kind: str) -> list[tuple[str, list[float | None]]]:
    """By name, the change of share at each lambda; the ten names with the largest change."""
    size: dict[str, float] = {}
    for point in points:
        for name, change in point.groups.get(kind, {}).items():
            size[name] = max(size.get(name, 0.0), abs(change))
    names = sorted(size, key=lambda name: (-size[name], name))[:10]
    return [(name, [point.groups[kind].get(name) for point in points]) for name in names]


def sweep_rows(points: Sequence[Point], metric: str) -> list[dict[str, Any]]:
    """The points as rows of a table; *metric* measures diversity."""
    diversity = _diversity(metric)
    knees = {name: knee(part) for name, part in by_variant(points).items()}
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


def recommendation_text(recommended: Recommendation) -> str:
    """The recommendation as a sentence."""
    return (
        f"Recommended: `selection.quality_weight={recommended.quality_weight:g}` "
        f"({recommended.reason}); {recommended.advice}."
    )


def sweep_markdown(run: Run, sweep: Sweep, points: Sequence[Point]) -> str:
    """The recommendation and the table, for Prefect's artifact. Raises as `recommend`."""
    recommended = recommend(run, sweep, points)
    return render(
        "sweep.md",
        recommendation=recommendation_text(recommended),
        rows=sweep_rows(points, run.settings.selection.metric),
        trained=recommended.trained,
    )
