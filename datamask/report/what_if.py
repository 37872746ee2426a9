"""What other budgets and other values of lambda would select, for the sliders of the page.

Another budget: all documents with a stored logit above a threshold are counted, at `POINTS`
thresholds, so the counts are exact. A rerun learns again, so it selects other documents with
similar figures. Another lambda: documents of the sample are ranked by their logits with the sums of
the selection held fixed, which is an approximation.

The thresholds are logits of sampled documents, and 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from datamask.analysis.composition import KINDS
from datamask.analysis.query import open_run_database
from datamask.report.finding import LEAST_EXPECTED
from datamask.report.group_findings import LEAST_RETENTION
from datamask.report.redundancy import NEAR_DUPLICATE_COSINE
from datamask.runs.followed import selection_of
from datamask.runs.run import Run

POINTS, RANKED = 200, 2000
"""Budgets that are counted, and documents that are ranked by other values of lambda."""

_SAMPLED = f"""
SELECT d.logit, other.logit AS nearest, s.quality_gain AS gain, d.quality,
    coalesce(d.tokens, d.characters) AS length, d.selected::INT AS kept
FROM sample s JOIN documents d ON s.shard = d.shard AND s.row = d.row
LEFT JOIN documents other ON other.shard = s.shard AND other.id = s.nearest
    AND s.cosine >= {NEAR_DUPLICATE_COSINE}::FLOAT
WHERE s.kind = 'random' ORDER BY s.shard, s.row
"""

_LISTED = "if({0} IN (SELECT name FROM groups), {0}, '') AS {0}"
"""SQL: a group; those that the report does not list are not told apart."""

_COUNTED = f"""
CREATE TEMP TABLE counted AS SELECT e.edge, {", ".join(f"d.{kind}" for kind in KINDS)},
    CASE {" ".join(f"WHEN grouping(d.{kind}) = 0 THEN '{kind}'" for kind in KINDS)}
    ELSE 'all' END AS kind, count(*) AS documents, sum(d.tokens)::BIGINT AS tokens,
    sum(d.characters)::BIGINT AS characters
FROM (SELECT logit, tokens, characters, {", ".join(map(_LISTED.format, KINDS))} FROM documents
    WHERE logit IS NOT NULL) d ASOF JOIN edges e ON d.logit > e.edge
GROUP BY GROUPING SETS ((e.edge), {", ".join(f"(e.edge, d.{kind})" for kind in KINDS)})
"""
"""Counts documents by threshold, and by threshold and group."""

_BUDGETS = """
SELECT edge, (sum(documents) OVER above)::BIGINT AS documents,
    (sum(tokens) OVER above)::BIGINT AS tokens, (sum(characters) OVER above)::BIGINT AS characters
FROM counted WHERE kind = 'all' WINDOW above AS (ORDER BY edge DESC) ORDER BY documents
"""

_GROUPS = f"""
WITH totals AS (
    SELECT edge, sum(documents) OVER (ORDER BY edge DESC) AS kept FROM counted WHERE kind = 'all'
), kept AS (
    SELECT g.share_before * t.kept AS expected, t.edge, coalesce(sum(c.documents) OVER (
        PARTITION BY g.kind, g.name ORDER BY t.edge DESC), 0) AS own
    FROM groups g CROSS JOIN totals t LEFT JOIN counted c ON c.kind = g.kind
        AND c.edge = t.edge AND coalesce({", ".join(f"c.{kind}" for kind in KINDS)}) = g.name
    WHERE g.kind IN {tuple(KINDS)}
)
SELECT edge, count(*) FILTER (own < {LEAST_RETENTION} * expected) AS low
FROM kept WHERE expected >= {LEAST_EXPECTED} GROUP BY edge
"""
"""Numbers of groups that keep less than half of their share, by threshold."""


def what_if(run: Run) -> dict[str, Any]:
    """The data of the sliders; empty if the selection has no budget, or nothing to choose from.

    `budgets`: documents, tokens, characters, groups that keep less than half of their share,
    sampled documents and near-copies among them, by threshold, the fewest documents first; `now`:
    the place of today's. `ranked`, for another lambda: what a weight of 1 for quality adds to the
    logit, what all else adds, quality, length, whether it is selected; empty unless quality and one
    metric are the only terms.
    """
    selection = selection_of(run)
    if selection.mask_model:
        return {}
    with open_run_database(run) as connection:
        sampled = connection.sql(_SAMPLED).to_arrow_table()
        if not sampled.num_rows:
            return {}
        logits = sampled["logit"].to_numpy().astype(np.float64)
        quantiles = np.quantile(logits, np.arange(POINTS) / POINTS, method="inverted_cdf")
        edges = np.unique([-np.inf, 0.0, *quantiles])
        connection.register("edges", pa.table({"edge": edges}))
        connection.execute(_COUNTED)
        rows = connection.execute(_BUDGETS).fetchall()
        low = dict(connection.execute(_GROUPS).fetchall())
    nearest = sampled["nearest"].to_numpy().astype(np.float64)
    copies = np.minimum(np.nan_to_num(nearest, nan=-np.inf), logits)
    return {
        "budgets": [
            [*sums, low.get(edge, 0), int((logits > edge).sum()), int((copies > edge).sum())]
            for edge, *sums in rows
        ],
        # Above 0; no document may be between 0 and the next edge.
        "now": sum(row[0] >= 0 for row in rows) - 1,
        "ranked": _ranked(run, sampled),
        "weight": selection.quality_weight,
        "unit": "documents" if selection.tokens is None else "tokens",
        "total": run.num_documents,
    }


def _ranked(run: Run, sampled: pa.Table) -> list[list[Any]]:
    """Every so many sampled documents with what another lambda would rank them by."""
    selection = selection_of(run)
    if selection.more_terms or selection.quality_weight == 1:
        return []
    known = sampled.filter(sampled["gain"].is_valid())
    known = known.take(np.arange(0, known.num_rows, -(-known.num_rows // RANKED) or 1))
    weight = selection.quality_weight
    return [
        [gain, logit - weight * gain, quality, length, kept]
        for logit, _, gain, quality, length, kept in zip(*known.to_pydict().values(), strict=True)
    ]
