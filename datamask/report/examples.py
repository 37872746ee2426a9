"""Documents to look at: what was nearly dropped, nearly kept, surest, and dropped though good."""

from __future__ import annotations

from typing import Any

from datamask.analysis.composition import open_composition
from datamask.runs.run import Run
from datamask.source.texts import beginnings

_KINDS = (
    ("Kept, near the threshold", "selected", "logit, id"),
    ("Dropped, near the threshold", "NOT selected", "logit DESC, id"),
    ("Highest logit", "selected", "logit DESC, id"),
    ("Dropped despite high quality", "NOT selected", "quality DESC, id"),
)

_EXAMPLES = """
SELECT shard, row, id, quality, logit, characters
FROM documents WHERE dropped IS NULL AND {where} ORDER BY {order} LIMIT {limit}
"""


def examples(run: Run) -> dict[str, list[dict[str, Any]]]:
    """`report.examples` documents of each kind.

    Returns:
        By kind: shard, row, id, quality, logit, characters, and `beginning` of the text
        (None where it was not read).

    Raises:
        RunError: the composition is missing.
    """
    limit = run.settings.report.examples
    found = {}
    with open_composition(run) as connection:
        for title, where, order in _KINDS:
            rows = connection.execute(_EXAMPLES.format(where=where, order=order, limit=limit))
            names = [column[0] for column in rows.description]
            found[title] = [dict(zip(names, row, strict=True)) for row in rows.fetchall()]
    texts = beginnings(run, [(row["shard"], row["row"]) for part in found.values() for row in part])
    for part in found.values():
        for row in part:
            row["beginning"] = texts.get((row["shard"], row["row"]))
    return found
