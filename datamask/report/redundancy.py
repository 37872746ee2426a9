"""Redundancy: cosines to the nearest document of a selection, and pairs that were compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datamask.analysis.summary import query
from datamask.runs.run import Run
from datamask.source.texts import beginnings

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
    rows = {row["set"]: row for row in query(run, sql)}
    return {name: rows[name] for name in SETS if name in rows}


def compared_copies(run: Run) -> dict[str, Any]:
    """Return the pairs that the rule of near-duplicates judged (`similar_pairs.compared_pairs`).

    Each pair also has the beginnings of both texts, `text` and `other_text`, or None; empty without
    near-duplicates.
    """
    if run.settings.quality.near_duplicates is None:
        return {}
    compared: dict[str, Any] = run.receipt("quality", 0).metrics["near_duplicates"]
    places = {
        end: [(pair[f"{end}shard"], pair[f"{end}row"]) for pair in compared["pairs"]]
        for end in ("", "other_")
    }
    texts = beginnings(run, [at for ends in places.values() for at in ends if at[0] >= 0])
    pairs = [
        pair | {f"{end}text": texts.get(places[end][number]) for end in places}
        for number, pair in enumerate(compared["pairs"])
    ]
    return {**compared, "pairs": pairs}
