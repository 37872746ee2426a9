"""Agreement of scores: Spearman's rank correlation of each pair, over a sample of the documents.

Two scores with a correlation near 0 measure different things; near 1, they are redundant.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa

SAMPLE_DOCUMENTS = 100_000
"""Approximate size of the sample; the standard error of a correlation is then about 0.003."""


def score_correlations(table: pa.Table) -> list[dict[str, Any]]:
    """Spearman's correlation of every pair of scores: columns, null where missing.

    Returns:
        For each pair `score`, `other`, `correlation` (in [-1, 1]; None if one is constant) and
        `documents` (number that have both).
    """
    pairs = []
    for score, other in combinations(table.column_names, 2):
        both = table.select([score, other]).drop_null()
        x, y = (column.to_numpy() for column in both.columns)
        pairs.append({"score": score, "other": other, "correlation": rank_correlation(x, y)})
        pairs[-1]["documents"] = len(both)
    return pairs


def rank_correlation(x: np.ndarray, y: np.ndarray) -> float | None:
    """Spearman's correlation with average ranks for ties; None if one is constant or empty.

    *x* and *y* are finite, of shape N.
    """
    from scipy.stats import rankdata

    ranks = [rankdata(values) - (len(values) + 1) / 2 for values in (x, y)]
    squares = [float(rank @ rank) for rank in ranks]
    if not all(squares):
        return None
    return round(float(ranks[0] @ ranks[1]) / float(np.sqrt(squares[0] * squares[1])), 6)
