"""Charts of learning: the objective and its terms, step by step, of one run or of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from datamask.analysis import learning_tables
from datamask.analysis.query import open_run_database
from datamask.analysis.summary import terms_of, units_of
from datamask.report.charts import Chart, Series, look
from datamask.runs.run import Run

MOST_SHARDS = 200
"""Number of shards whose curves are drawn, evenly spaced if there are more."""
MOST_LINES = 6
"""Number of shards up to which each has a line; with more shards, quantiles are drawn."""
QUANTILES = {"lowest tenth": 0.1, "median of the shards": 0.5, "highest tenth": 0.9}

Lines = dict[str, list[tuple[int, np.ndarray, np.ndarray]]]
"""By term: shard, steps and values of each curve."""


def curve_charts(runs: Mapping[str, Run], shards: Sequence[int] | None = None) -> list[Chart]:
    """Chart the objective over steps, and the gains of the terms; none if no run learned in shards.

    A run alone has a line per shard, or quantiles; several runs have a line each, the median of
    their shards. *shards* selects the shards to draw, for runs that are not finished; None: all.
    """
    lines = {name: read_curves(run, shards) for name, run in runs.items()}
    lines = {name: curves for name, curves in lines.items() if curves}
    if not lines:
        return []
    objective, terms = [], []
    for name, curves in lines.items():
        joint = curves.pop("objective")
        # Shards differ in what random documents have, so each has units of its own.
        units = {shard: units_of(terms_of(runs[name], [shard])) for shard, *_ in joint}
        if len(runs) > 1:
            objective.append((name, *quantile(joint, 0.5)))
        elif len(joint) <= MOST_LINES:
            objective += [(f"shard {shard}", steps, values) for shard, steps, values in joint]
        else:
            objective += [(text, *quantile(joint, share)) for text, share in QUANTILES.items()]
        for term, of_shards in curves.items():
            gained = [
                (shard, steps, (values - units[shard][term][0]) / units[shard][term][1])
                for shard, steps, values in of_shards
                if term in units[shard]
            ]
            text = f"{name}: {term}" if len(runs) > 1 else term
            terms += [(text, *quantile(gained, 0.5))] if gained else []
    several = len(runs) > 1
    return [
        Chart(
            key="curve-objective",
            title="the objective while it was learned",
            kind="lines",
            x="step",
            y="joint objective",
            series=_series(objective),
            note="The last point is the final mask, after swaps."
            + " The median of the shards; its unit depends on metric, λ and budget." * several,
        ),
        Chart(
            key="curve-terms",
            title="the terms while they were learned",
            kind="lines",
            x="step",
            y="share of the best possible gain",
            series=_series(sorted(terms, key=lambda line: line[0])),
            note="The median of the shards: 0 is the mean of a shard's random selections, 1 its "
            "best selection by this term alone, also for terms to minimise.",
        ),
    ]


def read_curves(run: Run, shards: Sequence[int] | None) -> Lines:
    """Read the curves of a finished run, or of some shards of a run; empty if it has none."""
    if shards is None:
        every = -(-run.num_shards // MOST_SHARDS)
        with open_run_database(run) as connection:
            table = connection.sql(
                f"FROM curves WHERE shard % {every} = 0 ORDER BY term, shard, step"
            ).to_arrow_table()
    else:
        table = learning_tables.curves(run, shards)
    return _lines(table)


def _lines(table: pa.Table) -> Lines:
    points: dict[str, dict[int, list[tuple[int, float]]]] = {}
    for row in table.to_pylist():
        of_shard = points.setdefault(row["term"], {}).setdefault(row["shard"], [])
        of_shard.append((row["step"], row["value"]))
    return {
        term: [(shard, *np.array(curve).T) for shard, curve in of_term.items()]
        for term, of_term in points.items()
    }


def quantile(
    curves: Sequence[tuple[int, np.ndarray, np.ndarray]], share: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return steps, and a quantile over curves there; an ended curve keeps its last value."""
    steps = np.unique(np.concatenate([steps for _, steps, _ in curves]))
    values = [np.interp(steps, own, values) for _, own, values in curves]
    return steps, np.quantile(values, share, axis=0)


def _series(lines: Sequence[tuple[str, np.ndarray, np.ndarray]]) -> tuple[Series, ...]:
    series = []
    for number, (name, steps, values) in enumerate(lines):
        y = [float(f"{value:.6g}") for value in values]
        series.append(Series(name=name, x=[*map(int, steps)], y=y, **look(number)))
    return tuple(series)
