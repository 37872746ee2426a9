"""The report's charts: plotly figures from `composition.duckdb`.

Colours are Okabe and Ito's, which people with any colour vision can tell apart; every axis says
what it shows and in which unit.
"""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from datamask.composition import query
from datamask.report.markdown import SELECTIONS
from datamask.store import Run

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
MOST_SHARDS = 50
MOST_POINTS = 200


def _figure(title: str, x: str, y: str) -> go.Figure:
    figure = go.Figure()
    figure.update_layout(
        title={"text": title, "font": {"size": 15}},
        xaxis_title=x,
        yaxis_title=y,
        colorway=COLOURS,
        margin={"l": 60, "r": 16, "t": 44, "b": 48},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": "#808080"},
        height=340,
        legend={"orientation": "h", "y": -0.25},
    )
    figure.update_xaxes(gridcolor="rgba(128,128,128,.25)", zeroline=False)
    figure.update_yaxes(gridcolor="rgba(128,128,128,.25)", zeroline=False)
    return figure


def curves(run: Run) -> list[go.Figure]:
    """One figure per term (the joint objective first): value over steps, shards overlaid.

    Evenly thinned to at most 50 shards and 200 points each, first and last kept.
    """
    rows = query(run.root, "SELECT * FROM curves WHERE value = value ORDER BY term, shard, step")
    by_term: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for row in rows:
        by_term.setdefault(row["term"], {}).setdefault(row["shard"], []).append(row)
    figures = []
    for term in sorted(by_term, key=lambda name: (name != "objective", name)):
        title = "joint objective (scaled)" if term == "objective" else term
        figure = _figure(title, "step", "value")
        for shard in _thinned(sorted(by_term[term]), MOST_SHARDS):
            points = _thinned(by_term[term][shard], MOST_POINTS)
            figure.add_scatter(
                x=[point["step"] for point in points],
                y=[point["value"] for point in points],
                customdata=[point["seconds"] for point in points],
                hovertemplate="step %{x}<br>%{y:.5g}<br>%{customdata:.1f} s",
                name=f"shard {shard:05d}",
                mode="lines",
            )
        figures.append(figure)
    return figures


def lengths(run: Run) -> go.Figure | None:
    """Quantiles of length by selection; None for a source without text."""
    rows = query(run.root, "SELECT * FROM lengths")
    rows = [row for row in rows if row["q50"] is not None]
    if not rows:
        return None
    figure = _figure("length of documents", "quantile (%)", "characters")
    figure.update_yaxes(type="log")
    points = [name for name in rows[0] if name != "selection"]
    for row in rows:
        figure.add_scatter(
            x=[int(point[1:]) for point in points],
            y=[row[point] for point in points],
            hovertemplate="%{x} %: %{y:,} characters",
            name=SELECTIONS[row["selection"]],
            mode="lines+markers",
        )
    return figure


def _thinned(values: list[Any], most: int) -> list[Any]:
    if len(values) <= most:
        return values
    return [values[i * (len(values) - 1) // (most - 1)] for i in range(most)]
