"""What other budgets and other values of lambda would select, for the sliders of the page.

Another budget: all documents with a stored logit above a threshold are counted, at `POINTS`
thresholds, so the counts are exact. A rerun learns again, so it selects other documents with
similar figures. Another lambda: documents of the sample are ranked by their logits with the sums of
the selection held fixed, which is an approximation; the points of a sweep are learned.
"""

from __future__ import annotations

from typing import Any

from datamask.analysis.composition import KINDS
from datamask.analysis.query import open_run_database
from datamask.report.chart_data import swept_points
from datamask.report.findings import LEAST_EXPECTED, LEAST_RETENTION
from datamask.report.redundancy import NEAR_DUPLICATE_COSINE
from datamask.runs.run import Run

POINTS, RANKED = 200, 2000
"""Budgets that are counted, and documents that are ranked by other values of lambda."""

# Thresholds are quantiles of the sample's logits, which no number of threads changes; 0, that of
# today; and that of all candidates.
_THRESHOLDS = """
CREATE TEMP TABLE thresholds AS SELECT DISTINCT unnest(
    quantile_disc(d.logit, [n / {points} FOR n IN range({points})]) || [0, '-inf'::FLOAT]) AS least
FROM sample s JOIN documents d ON s.shard = d.shard AND s.row = d.row WHERE s.kind = 'random'
"""

# Each document is counted once, at the largest threshold below its logit; groups that the report
# does not list are not told apart. Sums then go down the thresholds.
_COUNTED = """
CREATE TEMP TABLE counted AS SELECT t.least, {names},
    CASE {kind} ELSE 'all' END AS kind, count(*) AS documents, sum(d.tokens)::BIGINT AS tokens,
    sum(d.characters)::BIGINT AS characters
FROM (SELECT logit, tokens, characters, {listed} FROM documents WHERE logit IS NOT NULL) d
ASOF JOIN thresholds t ON d.logit > t.least
GROUP BY GROUPING SETS ((t.least), {sets})
"""

_BUDGETS = """
SELECT least, (sum(documents) OVER below)::BIGINT AS documents,
    (sum(tokens) OVER below)::BIGINT AS tokens, (sum(characters) OVER below)::BIGINT AS characters
FROM counted WHERE kind = 'all' WINDOW below AS (ORDER BY least DESC) ORDER BY documents
"""

_GROUPS = """
WITH totals AS (
    SELECT least, sum(documents) OVER (ORDER BY least DESC) AS kept FROM counted WHERE kind = 'all'
), kept AS (
    SELECT g.share_before * t.kept AS expected, t.least, coalesce(sum(c.documents) OVER (
        PARTITION BY g.kind, g.name ORDER BY t.least DESC), 0) AS own
    FROM groups g CROSS JOIN totals t LEFT JOIN counted c ON c.kind = g.kind
        AND c.least = t.least AND coalesce({names}) = g.name
    WHERE g.kind IN {kinds}
)
SELECT least, count(*) FILTER (own < {least_retention} * expected) AS low
FROM kept WHERE expected >= {expected} GROUP BY least
"""

_COPIES = """
SELECT t.least, count(*) AS sampled, count(*) FILTER (s.cosine >= {cosine}::FLOAT
    AND other.logit > t.least) AS copies
FROM thresholds t JOIN sample s ON s.kind = 'random'
JOIN documents d ON s.shard = d.shard AND s.row = d.row AND d.logit > t.least
LEFT JOIN documents other ON other.shard = s.shard AND other.id = s.nearest
    AND s.cosine >= {cosine}::FLOAT
GROUP BY t.least
"""

_RANKED = """
SELECT s.quality_gain AS gain, d.logit - {weight} * s.quality_gain AS others, d.quality,
    coalesce(d.tokens, d.characters) AS length, d.selected::INT AS kept
FROM sample s JOIN documents d ON s.shard = d.shard AND s.row = d.row
WHERE s.kind = 'random' AND s.quality_gain IS NOT NULL ORDER BY s.shard, s.row
"""


def what_if(run: Run) -> dict[str, Any]:
    """The data of the sliders; empty if the selection has no budget.

    `budgets`: documents, tokens, characters, groups that keep less than half of their share,
    sampled documents and near-copies among them, by threshold, the fewest documents first; `now`:
    the place of today's. `ranked`, for another lambda: what a weight of 1 for quality adds to the
    logit, what all else adds, quality, length, whether it is selected; empty unless quality and one
    metric are the only terms. `swept`: lambda, quality and diversity of a sweep, learned.
    """
    selection = run.settings.selection
    if selection.mask_model:
        return {}
    counted = _COUNTED.format(
        names=", ".join(f"d.{kind}" for kind in KINDS),
        kind=" ".join(f"WHEN grouping(d.{kind}) = 0 THEN '{kind}'" for kind in KINDS),
        listed=", ".join(
            f"if({kind} IN (SELECT name FROM groups), {kind}, '') AS {kind}" for kind in KINDS
        ),
        sets=", ".join(f"(t.least, d.{kind})" for kind in KINDS),
    )
    groups = _GROUPS.format(
        names=", ".join(f"c.{kind}" for kind in KINDS),
        kinds=tuple(KINDS),
        least_retention=LEAST_RETENTION,
        expected=LEAST_EXPECTED,
    )
    with open_run_database(run) as connection:
        connection.execute(_THRESHOLDS.format(points=POINTS))
        connection.execute(counted)
        rows = connection.execute(_BUDGETS).fetchall()
        low = dict(connection.execute(groups).fetchall())
        copies = connection.execute(_COPIES.format(cosine=NEAR_DUPLICATE_COSINE)).fetchall()
        ranked = connection.execute(_RANKED.format(weight=selection.quality_weight)).fetchall()
    if selection.more_terms or selection.quality_weight == 1:
        ranked = []
    near = {least: counts for least, *counts in copies}
    budgets = [[*sums, low.get(least, 0), *near.get(least, (0, 0))] for least, *sums in rows]
    today = [place for place, row in enumerate(rows) if row[0] == 0]
    return {
        "budgets": budgets,
        "now": today[0] if today else -1,
        "ranked": ranked[:: -(-len(ranked) // RANKED) or 1],
        "weight": selection.quality_weight,
        "swept": swept_points(run),
        "unit": "documents" if selection.tokens is None else "tokens",
        "total": run.num_documents,
    }
