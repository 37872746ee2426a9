"""Maximise the objective of mask learning greedily: a comparator of quadratic cost.

`greedy` adds one document S times: the one that gives the largest objective together with the n
documents chosen so far, with the run's weights and scales. Pairwise similarity and DiSF are sums of
a kernel over pairs, updated in O(N D) per step. DiSF standardises each dimension by mean and
deviation of the shard, where the objective uses the subset's; this is the only difference.

`lazy_greedy` (Minoux 1978) maximises quality and facility location together: λ / r · Σ q / S plus
coverage, which is the objective at S documents. As in learning, all documents are covered, not only
the sample that reports the term.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import numpy as np

from datamask.errors import SettingsError
from datamask.objectives.disf import DIVISOR, EPSILON
from datamask.objectives.pairwise import PairwiseSimilarity
from datamask.objectives.products import cosines
from datamask.objectives.weighted import WeightedTerm

LAZY_LIMIT = 20_000
"""Maximum number of documents whose similarities are all kept in memory
(docs/log.md#comparators)."""


def choose(
    features: np.ndarray,
    quality: np.ndarray,
    num_selected: int,
    terms: Sequence[WeightedTerm],
) -> np.ndarray:
    """`greedy`: return the chosen rows in the order of choice; shape S."""
    of_quality, of_metric = terms[:2]
    pair, own, factor = _kernel(of_metric, features)
    cost = np.zeros(len(features))
    taken = np.zeros(len(features), dtype=bool)
    chosen = np.empty(num_selected, dtype=np.int64)
    total = 0.0
    for step in range(num_selected):
        value = of_quality.factor * ((total + quality) / (step + 1))
        value += factor(step + 1) * (2 * cost + own)
        value[taken] = -np.inf
        best = int(np.argmax(value))
        chosen[step], taken[best] = best, True
        total += float(quality[best])
        cost += pair(best)
    return chosen


Kernel = tuple[Callable[[int], np.ndarray], np.ndarray, Callable[[int], float]]
"""The kernel of a row with all rows, of each row with itself, and the factor at n documents."""


def _kernel(term: WeightedTerm, whole: np.ndarray) -> Kernel:
    if isinstance(term.objective, PairwiseSimilarity):
        own = (whole**2).sum(1, dtype=np.float64) - 1  # The objective subtracts 1.
        return (
            lambda row: (whole @ whole[row]).astype(np.float64),
            own,
            lambda number: term.factor / max(number * (number - 1), 1) * (number > 1),
        )
    wide = whole.astype(np.float64)
    deviation = wide.std(0, ddof=1) if len(wide) > 1 else np.ones(wide.shape[1])
    standard = ((wide - wide.mean(0)) / (deviation + EPSILON)).astype(np.float32)
    square = standard**2

    def pair(row: int) -> np.ndarray:
        # Without the diagonal of the correlation matrix.
        together = (standard @ standard[row]).astype(np.float64) ** 2
        result: np.ndarray = together - (square @ square[row]).astype(np.float64)
        return result

    own = square.sum(1, dtype=np.float64) ** 2 - (square.astype(np.float64) ** 2).sum(1)
    return (
        pair,
        own,
        lambda number: term.factor / (max(number - 1, 1) ** 2 * DIVISOR) * (number > 1),
    )


def choose_covering(
    features: np.ndarray,
    quality: np.ndarray,
    num_selected: int,
    terms: Sequence[WeightedTerm],
) -> np.ndarray:
    """`lazy_greedy`: return the chosen rows in the order of choice; shape S.

    Raises:
        SettingsError: the shard is too large.
    """
    if len(features) > LAZY_LIMIT:
        raise SettingsError(
            f"selection.method: lazy_greedy keeps all pairs in memory, at most {LAZY_LIMIT:,} "
            f"documents, this shard has {len(features):,}; lower plan.rows_per_shard"
        )
    of_quality, weight = (term.factor for term in terms[:2])
    bonus = of_quality * quality / max(num_selected, 1)
    similarity = cosines(features, features)
    covered = np.full(len(features), -1.0, dtype=np.float32)

    def gain(row: int) -> float:
        """Return the gain in quality and facility location, given the documents chosen so far."""
        added = np.maximum(similarity[row] - covered, 0).mean(dtype=np.float64)
        return float(bonus[row] + weight * added)

    def choose(row: int) -> None:
        np.maximum(covered, similarity[row], out=covered)

    return lazily(gain, choose, len(features), num_selected)


def lazily(
    gain: Callable[[int], float], choose: Callable[[int], None], rows: int, number: int
) -> np.ndarray:
    """Choose the row with the largest gain, *number* times; int64, in the order of their choice.

    Gains never grow, so a row is tried again only while its last gain is the largest (Minoux 1978).

    Args:
        gain: of a row, after the rows chosen so far.
        choose: called with each chosen row.
        rows: their number.
        number: to choose, at most *rows*.
    """
    chosen: list[int] = []
    bounds = [(-gain(row), row) for row in range(rows)]
    heapq.heapify(bounds)
    while len(chosen) < number:
        _, best = heapq.heappop(bounds)
        fresh = -gain(best), best
        if bounds and fresh > bounds[0]:
            heapq.heappush(bounds, fresh)
            continue
        chosen.append(best)
        choose(best)
    return np.array(chosen, dtype=np.int64)
