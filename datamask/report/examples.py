"""Documents to look at: what was nearly dropped, nearly kept, surest, and dropped though good."""

from __future__ import annotations

from typing import Any

from datamask.composition import open_composition
from datamask.report.texts import beginnings
from datamask.store import Run

_KINDS = (
    ("Kept, near the threshold", "selected", "margin, id"),
    ("Dropped, near the threshold", "NOT selected", "margin DESC, id"),
    ("Highest logit", "selected", "margin DESC, id"),
    ("Dropped despite high quality", "NOT selected", "quality DESC, id"),
)

_MARGINS = """
SELECT d.shard, d.row, d.id, d.quality, d.logit, d.characters,
    (d.logit - c.cut) / c.deviation AS margin
FROM documents d JOIN cuts c ON d.shard = c.shard
WHERE d.dropped IS NULL AND {where} ORDER BY {order} LIMIT {limit}
"""

# Shards that keep everything or nothing have no threshold.
_CUTS = """
CREATE TEMP TABLE cuts AS
SELECT shard, min(logit) FILTER (selected) AS cut, stddev_pop(logit) AS deviation
FROM documents WHERE dropped IS NULL GROUP BY shard
HAVING count(*) FILTER (selected) > 0 AND count(*) FILTER (NOT selected) > 0
AND stddev_pop(logit) > 0
"""


def examples(run: Run) -> dict[str, list[dict[str, Any]]]:
    """`report.examples` documents of each kind.

    Logits of different shards are on different scales, so nearness to the threshold is told by the
    margin: (logit − the shard's cut) / deviation of the shard's logits.

    Returns:
        By kind: shard, row, id, quality, logit, characters, margin, and `beginning` of the text
        (None where it was not read).

    Raises:
        RunError: the composition is missing.
    """
    limit = run.settings.report.examples
    found = {}
    with open_composition(run.root) as connection:
        # Deviations of equal runs must be equal to the last digit.
        connection.execute("SET threads = 1")
        connection.execute(_CUTS)
        for title, where, order in _KINDS:
            rows = connection.execute(_MARGINS.format(where=where, order=order, limit=limit))
            names = [column[0] for column in rows.description]
            found[title] = [dict(zip(names, row, strict=True)) for row in rows.fetchall()]
    texts = beginnings(run, [(row["shard"], row["row"]) for part in found.values() for row in part])
    for part in found.values():
        for row in part:
            row["beginning"] = texts.get((row["shard"], row["row"]))
    return found
