"""What screening found: near-duplicates that were dropped, and documents that benchmarks share."""

from __future__ import annotations

from typing import Any

from datamask.analysis.composition import query
from datamask.runs.run import Run


def near_duplicates(run: Run) -> dict[str, int] | None:
    """`dropped` near-duplicates; `kept_instead`, documents of ours; `earlier`, dropped for others.

    None if the settings do not look for them.

    Raises:
        RunError: the composition is not there yet.
    """
    if run.settings.quality.near_duplicates is None:
        return None
    [found] = query(
        run,
        "SELECT count(*) AS dropped, "
        "count(*) FILTER (starts_with(near_duplicate_of, 'earlier:')) AS earlier, "
        "count(DISTINCT near_duplicate_of) FILTER "
        "(NOT starts_with(near_duplicate_of, 'earlier:')) AS kept_instead "
        "FROM documents WHERE dropped = 'near_duplicate'",
    )
    return found


def benchmarks(run: Run) -> list[dict[str, Any]]:
    """For each benchmark, in the order of the settings, what is known and what was found.

    `name`, `texts`, `short` (texts too short to be found), `ngrams`; `documents` that share one,
    of these `dropped` for it and `selected`; an `example` of the shared words, or None.

    Raises:
        RunError: the composition or the n-grams of the benchmarks are missing or stale.
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
    names = [one.name for one in known.sets]
    return [{"name": name, **sets[name], **found.get(name, nothing)} for name in names]
