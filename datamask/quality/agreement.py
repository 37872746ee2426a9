"""How far scores agree: Spearman's rank correlation of each pair, over a sample of the documents.

Two scores that hardly correlate measure different things; two that nearly coincide count twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

SAMPLE_DOCUMENTS = 100_000
"""About as many are compared: of 100,000 documents a correlation is known to 0.003."""


def score_correlations(connection: Any, names: Sequence[str]) -> list[dict[str, Any]]:
    """Spearman's correlation of every pair of scores.

    The sample follows from the documents' ids (MD5), so it is the same on every machine.

    Args:
        connection: with table `raw`: shard, row, id, v0, v1, ...
        names: of the scores, in their order.

    Returns:
        For each pair `score`, `other`, `correlation` (null where one is constant) and `documents`
        (that have both).
    """
    if len(names) < 2:
        return []
    values = ", ".join(f"v{i}" for i in range(len(names)))
    table = connection.sql(
        f"SELECT {values} FROM raw WHERE md5_number_lower(id) % greatest(1, "
        f"(SELECT count(*) FROM raw) // {SAMPLE_DOCUMENTS}) = 0 ORDER BY shard, row"
    ).to_arrow_table()
    columns = [column.to_numpy(zero_copy_only=False).astype(np.float64) for column in table.columns]
    found = []
    for (one, x), (other, y) in combinations(zip(names, columns, strict=True), 2):
        both = ~(np.isnan(x) | np.isnan(y))
        found.append(
            {
                "score": one,
                "other": other,
                "correlation": rank_correlation(x[both], y[both]),
                "documents": int(both.sum()),
            }
        )
    return found


def rank_correlation(x: np.ndarray, y: np.ndarray) -> float | None:
    """Spearman's correlation, ties averaged; None where one of the two is constant or empty."""
    from scipy.stats import rankdata

    ranks = [rankdata(values) - (len(values) + 1) / 2 for values in (x, y)]
    squares = [float(rank @ rank) for rank in ranks]
    if not all(squares):
        return None
    return round(float(ranks[0] @ ranks[1]) / float(np.sqrt(squares[0] * squares[1])), 6)
