"""Make the report's charts: trade-off of quality and diversity, map, learning, and training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from datamask.analysis import learning_tables
from datamask.analysis.summary import gains, query, terms_of, units_of
from datamask.objectives.formula import metric_name
from datamask.report.charts import GREY, Chart, Series, look
from datamask.runs.run import Run

LOOKS = {
    "source": (GREY, 2),
    "random": ("#CC79A7", 3),
    "top_quality": ("#E69F00", 1),
    "selected": ("#0072B2", 0),
}
"""Colour and style of a selection, the same in every chart and page."""

NAMES = {
    "source": "source",
    "candidates": "left by pruning",
    "selected": "ours",
    "top_quality": "top quality",
    "random": "random",
}
"""Displayed name of each selection."""


def series_of(selection: str, x: Any, y: Any, **more: Any) -> Series:
    """Make a series of a selection, with its name, colour and style."""
    colour, style = LOOKS[selection]
    return Series(**{"name": NAMES[selection], "colour": colour, "style": style, **more}, x=x, y=y)


def tradeoff(run: Run) -> Chart:
    """Chart quality against diversity of all selections, as fractions of the best gains.

    It has no series if the method has no diversity term.
    """
    metric = metric_name(run.settings.selection.metric)
    known = gains(run)
    series: list[Series] = []
    if "quality" in known and metric in known:
        points: dict[str, tuple[float, float]] = {
            name: (known["quality"][name], known[metric][name])
            for name in ("top_quality", "selected")
            if name in known["quality"]
        }
        points["random"] = (0.0, 0.0)
        for name in LOOKS:
            if name in points:
                x, y = points[name]
                hover, labels = [f"quality {x:.0%}, diversity {y:.0%}"], [NAMES[name]]
                series.append(series_of(name, [x], [y], hover=hover, labels=labels, size=11))
    return tradeoff_chart(series, metric)


def tradeoff_chart(series: Sequence[Series], metric: str, note: str = "") -> Chart:
    """Return the chart of quality against diversity, in which *metric* measures diversity."""
    return Chart(
        key="tradeoff",
        title="quality against diversity",
        kind="lines",
        x="better documents →",
        y="more different →",
        series=tuple(series),
        note=f"Up and right is better. {note}Quality and diversity (by {metric}) are shares: 0 is "
        "the mean of random selections, 1 the best selection by this alone.",
    )


WINDOWS, GROUPS = 20, 4
"""Number of parts of the training that are compared with the whole, and of groups shown."""

_WINDOWS = f"""
WITH seen AS (
    SELECT least(first_token * {WINDOWS} // $total, {WINDOWS - 1}) AS part, e.tokens, d.* EXCLUDE
    (tokens), exposure FROM exposures e JOIN documents d USING (id)
), kind AS (
    SELECT CASE WHEN count(DISTINCT dump) > 1 THEN 'dump' WHEN count(DISTINCT language) > 1
    THEN 'language' ELSE 'domain' END AS kind FROM documents WHERE selected
), named AS (
    SELECT part, tokens, CASE kind WHEN 'dump' THEN dump WHEN 'language' THEN language ELSE domain
    END AS name FROM seen, kind
    UNION ALL SELECT part, tokens, 'seen before' FROM seen WHERE exposure > 1
), whole AS (
    SELECT name, sum(tokens) / $total AS share FROM named GROUP BY name
    QUALIFY name = 'seen before' OR row_number() OVER (ORDER BY share DESC, name) <= {GROUPS}
), parts AS (SELECT part, sum(tokens) AS size FROM seen GROUP BY part)
SELECT w.name, w.share, list(coalesce(n.tokens, 0) / size ORDER BY p.part) AS shares
FROM whole w CROSS JOIN parts p LEFT JOIN (SELECT name, part, sum(tokens) AS tokens FROM named
GROUP BY ALL) n ON n.name = w.name AND n.part = p.part GROUP BY ALL ORDER BY w.share DESC, w.name
"""


def training_windows(run: Run) -> list[Chart]:
    """Chart fractions of groups, and of repeated text, along the training; none without tokens."""
    if run.settings.tokens is None:
        return []
    total = run.receipt("order").metrics["tokens"]
    series = []
    for number, row in enumerate(query(run, _WINDOWS, {"total": total})):
        hover = [
            f"{row['name']}: {share:.1%} here, {row['share']:.1%} of all" for share in row["shares"]
        ]
        x = [(part + 0.5) / len(hover) for part in range(len(hover))]
        y = [round(share / row["share"], 4) for share in row["shares"]]
        series.append(Series(name=row["name"], x=x, y=y, hover=hover, **look(number)))
    return [
        Chart(
            key="training",
            title="what training sees, from its first to its last token",
            kind="lines",
            x="share of the training",
            y="share of the tokens here, relative to that of all",
            series=tuple(series),
            note=f"The largest groups in {WINDOWS} parts of {total:,} tokens; 1 is as in the "
            "whole. `datamask seen` lists the documents of any part.",
        )
    ]


_MAPPED = """
SELECT s.id, round(s.x::DOUBLE, 3) AS x, round(s.y::DOUBLE, 3) AS y, d.selected,
    d.top_quality, NOT (d.selected OR d.top_quality) AS source
FROM sample s JOIN documents d ON s.shard = d.shard AND s.row = d.row AND s.id = d.id
WHERE s.x IS NOT NULL ORDER BY s.shard, s.row
"""


def embedding_map(run: Run) -> Chart:
    """Chart the sample's documents: a dot for ours, an outline around top quality."""
    sampled = query(run, _MAPPED)
    series = []
    for name, size in (("source", 5), ("top_quality", 9), ("selected", 6)):
        rows = [row for row in sampled if row[name]]
        series.append(
            series_of(
                name,
                [row["x"] for row in rows],
                [row["y"] for row in rows],
                name="other candidates" if name == "source" else NAMES[name],
                style=0 if name == "source" else LOOKS[name][1],
                hover=[row["id"] for row in rows],
                size=size,
                hollow=name == "top_quality",
            )
        )
    return Chart(
        key="map",
        title="map of the embedding space",
        kind="points",
        x="t-SNE, first axis (no unit)",
        y="t-SNE, second axis (no unit)",
        series=tuple(series),
        equal=True,
        note=f"{len(sampled):,} random candidates. A dot within an outline is a document that "
        f"ours and top quality share. Neighbours on the map have {_likeness(run)}; larger "
        "distances are not to scale. A click on a document opens it below.",
    )


def _likeness(run: Run) -> str:
    """Say what nearby documents have in common, by the origin of the vectors."""
    if run.settings.vector_column:
        return "similar vectors, which you gave"
    if run.settings.embedding.method == "lexical":
        return "similar wording (lexical vectors), not necessarily similar meaning"
    return "similar meaning, as far as the encoder represents it"


MOST_SHARDS = 200
"""Number of shards whose curves are drawn, evenly spaced if there are more."""
MOST_LINES = 6
"""Number of shards up to which each has a line; with more shards, quantiles are drawn."""
QUANTILES = {"lowest tenth": 0.1, "median of the shards": 0.5, "highest tenth": 0.9}

Line = tuple[str, np.ndarray, np.ndarray]
"""Name, steps and values of a drawn curve."""

Curves = list[tuple[int, np.ndarray, np.ndarray]]
"""Shard, steps and values of each curve."""

Lines = dict[str, Curves]
"""The curves of each term."""


def curve_charts(runs: Mapping[str, Run], shards: Sequence[int] | None = None) -> list[Chart]:
    """Chart how the objective and the gains of its terms rose while masks were learned.

    For one run, the chart of the objective has a line for each shard, or quantiles of many shards.
    All other lines are means of the shards, weighted by selected documents as in table `terms`, so
    that they end at the gain that the report shows. No chart if no run learned in shards.

    Args:
        runs: by the name that labels their lines.
        shards: the shards to draw, for runs that are not finished; None: all.
    """
    lines = {name: read_curves(run, shards) for name, run in runs.items()}
    objective, terms = [], []
    for name, curves in lines.items():
        joint = curves.pop("objective", [])
        drawn = [shard for shard, *_ in joint]
        selected = [runs[name].receipt("selection", n).metrics["num_selected"] for n in drawn]
        if not any(selected):
            continue
        units = units_of(terms_of(runs[name], drawn))
        if len(runs) > 1:
            objective.append((name, *mean(joint, selected)))
        elif len(joint) <= MOST_LINES:
            objective += [(f"shard {shard}", steps, values) for shard, steps, values in joint]
        else:
            objective += [(text, *quantile(joint, share)) for text, share in QUANTILES.items()]
        for term, (random, most) in units.items():
            steps, values = mean(curves[term], selected)
            text = f"{name}: {term}" if len(runs) > 1 else term
            terms.append((text, steps, (values - random) / most))
    if not objective:
        return []
    several = len(runs) > 1
    return [
        _curve_chart(
            "objective",
            "the objective while it was learned",
            "joint objective",
            objective,
            "The last point is the final mask, after swaps."
            + " The mean of the shards; its unit depends on metric, λ and budget." * several,
        ),
        _curve_chart(
            "terms",
            "the terms while they were learned",
            "share of the best possible gain",
            sorted(terms, key=lambda line: line[0]),
            "The mean of the shards: 0 is the mean of random selections, 1 the best selection by "
            "this term alone, also for terms to minimise.",
        ),
    ]


def _curve_chart(key: str, title: str, y: str, lines: Sequence[Line], note: str) -> Chart:
    series = []
    for number, (name, steps, values) in enumerate(lines):
        shown = [float(f"{value:.6g}") for value in values]
        series.append(Series(name=name, x=[*map(int, steps)], y=shown, **look(number)))
    return Chart(
        key=f"curve-{key}",
        title=title,
        kind="lines",
        x="step",
        y=y,
        series=tuple(series),
        note=note,
    )


def read_curves(run: Run, shards: Sequence[int] | None) -> Lines:
    """Read the curves of a finished run, or of some shards of a run; empty if it has none."""
    if shards is None:
        every = -(-run.num_shards // MOST_SHARDS)
        sql = f"FROM curves WHERE shard % {every} = 0 ORDER BY term, shard, step"
        rows = query(run, sql)
    else:
        rows = learning_tables.curves(run, shards).to_pylist()
    points: dict[str, dict[int, list[tuple[int, float]]]] = {}
    for row in rows:
        of_shard = points.setdefault(row["term"], {}).setdefault(row["shard"], [])
        of_shard.append((row["step"], row["value"]))
    return {
        term: [(shard, *np.array(curve).T) for shard, curve in of_term.items()]
        for term, of_term in points.items()
    }


def quantile(curves: Curves, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Return steps, and a quantile over curves there."""
    steps, values = _at_common_steps(curves)
    return steps, np.quantile(values, share, axis=0)


def mean(curves: Curves, weights: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return steps, and the weighted mean of curves there."""
    steps, values = _at_common_steps(curves)
    return steps, np.average(values, axis=0, weights=weights)


def _at_common_steps(curves: Curves) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return all steps, and each curve there; an ended curve keeps its last value."""
    steps = np.unique(np.concatenate([steps for _, steps, _ in curves]))
    return steps, [np.interp(steps, own, values) for _, own, values in curves]
