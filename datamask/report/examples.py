"""Example documents: near the threshold, with the highest logit, and dropped despite quality."""

from __future__ import annotations

from typing import Any

from datamask.analysis.composition import query
from datamask.runs.run import Run
from datamask.source.texts import with_beginnings

_KINDS = {
    "Kept, near the threshold": "selected ORDER BY logit, id",
    "Dropped, near the threshold": "NOT selected ORDER BY logit DESC, id",
    "Highest logit": "selected ORDER BY logit DESC, id",
    "Dropped despite high quality": "NOT selected ORDER BY quality DESC, id",
}


def examples(run: Run) -> dict[str, list[dict[str, Any]]]:
    """`report.examples` documents of each kind.

    Returns:
        By kind: shard, row, id, quality, logit, characters, and `beginning` of the text
        (None if it was not read).

    Raises:
        RunError: the composition is missing.
    """
    found = {
        kind: query(
            run,
            "SELECT shard, row, id, quality, logit, characters FROM documents "
            f"WHERE dropped IS NULL AND {condition} LIMIT {run.settings.report.examples}",
        )
        for kind, condition in _KINDS.items()
    }
    # One call, because `report.text_bytes` limits all kinds together.
    rows = iter(with_beginnings(run, [row for part in found.values() for row in part]))
    return {kind: [next(rows) for _ in part] for kind, part in found.items()}
