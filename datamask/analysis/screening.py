"""Results of screening: near-duplicates, and documents that share n-grams with benchmarks."""

from __future__ import annotations

from typing import Any

from datamask.analysis.composition import query
from datamask.runs.run import Run


def near_duplicates(run: Run) -> dict[str, int]:
    """Number of near-duplicates `dropped`, and of those that repeat an `earlier` dataset."""
    [found] = query(
        run,
        "SELECT count(*) AS dropped, count(*) FILTER (near_duplicate_of LIKE 'earlier:%') "
        "AS earlier FROM documents WHERE dropped = 'near_duplicate'",
    )
    return found


def benchmarks(run: Run) -> list[dict[str, Any]]:
    """The results of each benchmark, in the order of the settings.

    Keys: `name`; its `texts`, those too `short` to be detected, and its `ngrams`; the number of
    `documents` that share an n-gram, of those `dropped` for it and of those `selected`; and an
    `example` of a shared n-gram, or None.
    """
    known = run.settings.quality.contamination
    if known is None:
        return []
    rows = query(
        run,
        "SELECT contaminated_by AS name, count(*) AS documents, "
        "count(*) FILTER (dropped = 'contaminated') AS dropped, "
        "count(*) FILTER (selected) AS selected, "
        "min_by(contaminated_ngram, (shard, row)) AS example FROM documents "
        "WHERE contaminated_by IS NOT NULL GROUP BY contaminated_by",
    )
    found = {row["name"]: row for row in rows}
    nothing = {"documents": 0, "dropped": 0, "selected": 0, "example": None}
    sets = run.receipt("benchmark_ngrams").metrics
    return [
        {"name": one.name, **sets[one.name], **found.get(one.name, nothing)} for one in known.sets
    ]
