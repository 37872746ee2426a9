"""Cosines to the nearest other document of the same selection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datamask.analysis.summary import open_run_database, rows_of
from datamask.runs.run import Run

NEAR_DUPLICATE_COSINE = 0.95
"""Cosine from which two documents are near-duplicates."""

NEAR_COPY = "near-copy pair"
"""Kind of a sampled document with a selected near-duplicate."""

SETS = ("selected", "top_quality", "random")


_REDUNDANCY = """
SELECT set, count(*) AS documents, avg(cosine::DOUBLE) AS mean,
    avg((cosine >= {least}::FLOAT)::INT) AS near_duplicates,
    sqrt(near_duplicates * (1 - near_duplicates) / documents * (size - documents)
        / greatest(size - 1, 1)) AS error
FROM neighbours, (SELECT sum(selected) AS size FROM shards) GROUP BY set, size
"""


def sample_path(run: Run) -> Path:
    """Return the file of the sample."""
    return run.root / "report" / "sample.parquet"


def neighbours_path(run: Run) -> Path:
    """Return the file of the cosines to nearest neighbours."""
    return run.root / "report" / "neighbours.parquet"


def redundancy(run: Run) -> dict[str, dict[str, Any]]:
    """Return, by selection, sampled documents and the mean cosine to the nearest other document.

    `near_duplicates` is the fraction with a cosine of at least `NEAR_DUPLICATE_COSINE`, `error` its
    standard error for a draw without replacement, 0 if all documents were asked. Selections without
    documents are left out, and all without a report.
    """
    if not run.fetch(sample_path(run)).exists():
        return {}
    sql = _REDUNDANCY.format(least=NEAR_DUPLICATE_COSINE)
    with open_run_database(run) as connection:
        rows = {row["set"]: row for row in rows_of(connection.execute(sql))}
    return {name: rows[name] for name in SETS if name in rows}
