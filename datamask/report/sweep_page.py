"""The page of a sweep: the frontier of quality and diversity, its knee, and what else changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from datamask.analysis.frontier import Point, knee, knee_by_seed
from datamask.analysis.sweep_trials import BASE, chosen_shards
from datamask.config.outputs import Sweep
from datamask.report.charts import COLOURS, Chart, Series
from datamask.report.markdown import KINDS, table
from datamask.report.page import render
from datamask.runs.run import Run


def by_variant(points: Sequence[Point]) -> dict[str, list[Point]]:
    """The points of each variant, by lambda."""
    found: dict[str, list[Point]] = {}
    for point in points:
        found.setdefault(point.variant, []).append(point)
    return found


def sweep_charts(points: Sequence[Point]) -> list[Chart]:
    """Frontier; gains, lengths and composition over lambda."""
    variants = by_variant(points)
    charts = [_frontier(variants), _gains(variants[BASE])]
    if any(point.mean_characters is not None for point in points):
        charts.append(
            Chart(
                key="sweep-length",
                title="mean length of what is kept",
                kind="lines",
                x="λ (1: quality alone, 0: diversity alone)",
                y="characters",
                series=_over_lambda(variants, lambda point: point.mean_characters, "characters"),
            )
        )
    kinds = [kind for kind in KINDS if any(kind in point.shift for point in points)]
    if kinds:
        charts.append(
            Chart(
                key="sweep-composition",
                title="how far the composition moves",
                kind="lines",
                x="λ (1: quality alone, 0: diversity alone)",
                y="documents moved (%)",
                note="Share of the documents kept that would have to bear another name for the "
                "composition of the candidates; selection as in the run.",
                series=tuple(
                    Series(
                        name=KINDS[kind],
                        x=[point.quality_weight for point in variants[BASE]],
                        y=[100 * point.shift[kind] for point in variants[BASE]],
                        colour=COLOURS[place],
                        style=place,
                        hover=[
                            f"λ {point.quality_weight:g}: {point.shift[kind]:.2%}"
                            for point in variants[BASE]
                        ],
                    )
                    for place, kind in enumerate(kinds)
                ),
            )
        )
    return charts


def _frontier(variants: dict[str, list[Point]]) -> Chart:
    series = []
    for place, (name, points) in enumerate(variants.items()):
        best = knee(points)
        series.append(
            Series(
                name=name,
                x=[point.quality for point in points],
                y=[point.diversity for point in points],
                low=[point.diversity_range[0] for point in points],
                high=[point.diversity_range[1] for point in points],
                colour=COLOURS[place % len(COLOURS)],
                style=place,
                hover=[
                    f"λ {point.quality_weight:g}{' (knee)' if point is best else ''}\n"
                    f"quality {point.quality:.2f} "
                    f"({point.quality_range[0]:.2f} to {point.quality_range[1]:.2f})\n"
                    f"diversity {point.diversity:.2f} "
                    f"({point.diversity_range[0]:.2f} to {point.diversity_range[1]:.2f})"
                    for point in points
                ],
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
            hover=[f"recommended: λ {best.quality_weight:g}"],
        )
    )
    return Chart(
        key="frontier",
        title="quality against diversity",
        kind="lines",
        x="quality: gain over random (deviations)",
        y="diversity: gain over random (deviations)",
        series=tuple(series),
        note="One point per λ; bars span the seeds. Up and right is better. A deviation is that of "
        "random subsets of the same size.",
    )


def _gains(points: Sequence[Point]) -> Chart:
    weights = [point.quality_weight for point in points]
    return Chart(
        key="sweep-gains",
        title="gain of each term",
        kind="lines",
        x="λ (1: quality alone, 0: diversity alone)",
        y="gain over random (deviations)",
        note="Selection as in the run; bars span the seeds.",
        series=(
            Series(
                name="quality",
                x=weights,
                y=[point.quality for point in points],
                low=[point.quality_range[0] for point in points],
                high=[point.quality_range[1] for point in points],
                colour=COLOURS[1],
                style=1,
                hover=[f"λ {p.quality_weight:g}: {p.quality:.2f} deviations" for p in points],
            ),
            Series(
                name="diversity",
                x=weights,
                y=[point.diversity for point in points],
                low=[point.diversity_range[0] for point in points],
                high=[point.diversity_range[1] for point in points],
                colour=COLOURS[2],
                style=2,
                hover=[f"λ {p.quality_weight:g}: {p.diversity:.2f} deviations" for p in points],
            ),
        ),
    )


def _over_lambda(variants: dict[str, list[Point]], value: Any, unit: str) -> tuple[Series, ...]:
    return tuple(
        Series(
            name=name,
            x=[point.quality_weight for point in points],
            y=[value(point) for point in points],
            colour=COLOURS[place % len(COLOURS)],
            style=place,
            hover=[f"λ {p.quality_weight:g}: {value(p):,.0f} {unit}" for p in points],
        )
        for place, (name, points) in enumerate(variants.items())
        if all(value(point) is not None for point in points)
    )


def sweep_page(run: Run, sweep: Sweep, points: Sequence[Point]) -> str:
    """The page's HTML."""
    charts = sweep_charts(points)
    variants = by_variant(points)
    base = variants[BASE]
    recommended = knee(base)
    current = run.settings.selection.quality_weight
    return render(
        "sweep.html",
        charts=charts,
        title=run.root.absolute().name,
        recommended=recommended,
        recommended_by_seed=sorted(knee_by_seed(base)),
        current=current,
        metric=run.settings.selection.metric,
        scope=run.settings.selection.scope,
        points=points,
        knees={name: knee(part) for name, part in variants.items()},
        num_shards=len(chosen_shards(run, sweep)),
        of_shards=run.num_shards,
        num_seeds=len(sweep.seeds),
        changes={KINDS[kind]: _changes(base, kind) for kind in KINDS if _changes(base, kind)},
        weights=[point.quality_weight for point in base],
        settings=yaml.safe_dump(sweep.model_dump(mode="json"), sort_keys=False),
    )


def _changes(points: Sequence[Point], kind: str) -> list[tuple[str, list[float | None]]]:
    """By name, the change of share at each lambda; the ten that move most anywhere."""
    size: dict[str, float] = {}
    for point in points:
        for name, change in point.groups.get(kind, {}).items():
            size[name] = max(size.get(name, 0.0), abs(change))
    names = sorted(size, key=lambda name: (-size[name], name))[:10]
    return [(name, [point.groups[kind].get(name) for point in points]) for name in names]


def sweep_rows(points: Sequence[Point]) -> list[dict[str, Any]]:
    """The points as rows of plain values, for tables."""
    knees = {name: knee(part) for name, part in by_variant(points).items()}
    return [
        {
            "variant": point.variant,
            "lambda": point.quality_weight,
            "quality": round(point.quality, 3),
            "quality by seed": f"{point.quality_range[0]:.3f} to {point.quality_range[1]:.3f}",
            "diversity": round(point.diversity, 3),
            "diversity by seed": (
                f"{point.diversity_range[0]:.3f} to {point.diversity_range[1]:.3f}"
            ),
            "mean characters": None
            if point.mean_characters is None
            else round(point.mean_characters, 1),
            "knee": "knee" if knees[point.variant] is point else "",
        }
        for point in points
    ]


def sweep_markdown(points: Sequence[Point]) -> str:
    """The recommendation and the table, for Prefect's artifact."""
    best = knee([point for point in points if point.variant == BASE])
    rows = sweep_rows(points)
    return (
        f"Recommended: `selection.quality_weight={best.quality_weight:g}`, the knee of quality and "
        "diversity (gains over random subsets, in their deviations).\n\n"
        + table(list(rows[0]), [list(row.values()) for row in rows])
        + "\n"
    )
