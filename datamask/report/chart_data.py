"""Make the report's charts: the trade-off of quality and diversity, a map, and the training."""

from __future__ import annotations

from typing import Any

from datamask.analysis.composition import rows_of
from datamask.analysis.query import open_run_database
from datamask.analysis.summary import gains
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
    from datamask.objectives.weighted import load_objective  # This imports torch.

    metric = load_objective(run.settings.selection.metric).name
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
    return Chart(
        key="tradeoff",
        title="quality against diversity",
        kind="lines",
        x="better documents →",
        y="more different →",
        series=tuple(series),
        note=f"Up and right is better. Quality and diversity (by {metric}) are shares: 0 is the "
        "mean of random selections, 1 the best selection by this alone.",
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
    with open_run_database(run, "documents exposures") as connection:
        rows = rows_of(connection.execute(_WINDOWS, {"total": total}))
    series = []
    for number, row in enumerate(rows):
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
    with open_run_database(run) as connection:
        sampled = rows_of(connection.execute(_MAPPED))
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
