"""Incremental greedy selection: the honest, quadratic comparator.

`greedy` adds, S times, the document with the best marginal gain of quality and metric together:
for pairwise similarity by the running sum of vectors (O(S N D)), for DiSF by the second-moment
norm, its uncentred form, with running scores x_jᵀ M x_j (O(S N D)). `lazy_greedy` (Minoux 1978) and
`stochastic_greedy` (Mirzasoleiman et al. 2015) serve facility location. Gains are in units of the
deviation a term has over single documents, so lambda weighs like with like.
"""

from __future__ import annotations

import heapq

import numpy as np

from datamask.config import Selection
from datamask.errors import SettingsError

LAZY_LIMIT = 20_000
"""Most documents for which facility location keeps all similarities in memory."""


def choose(
    method: str,
    features: np.ndarray,
    quality: np.ndarray,
    num_selected: int,
    selection: Selection,
    generator: np.random.Generator,
) -> np.ndarray:
    """Rows in the order in which they are chosen; shape S.

    Raises:
        SettingsError: the method does not serve the metric, or the shard is too large for it.
    """
    whole = features.astype(np.float32)
    weight = selection.quality_weight
    deviation = float(np.std(quality)) if len(quality) else 0.0
    bonus = weight * np.asarray(quality, np.float64) / (deviation or 1.0)
    if method == "greedy" and selection.metric in ("pairwise", "disf"):
        return _moments(whole, bonus, num_selected, 1 - weight, selection.metric == "disf")
    if method in ("lazy_greedy", "stochastic_greedy") and selection.metric == "facility_location":
        if len(whole) > LAZY_LIMIT:
            raise SettingsError(
                f"selection.method: {method} keeps all pairs in memory, at most {LAZY_LIMIT} "
                f"documents, this shard has {len(whole)}; lower plan.rows_per_shard"
            )
        drawn = generator if method == "stochastic_greedy" else None
        return _facility_location(whole, bonus, num_selected, 1 - weight, drawn)
    raise SettingsError(
        f"selection.method: {method} does not serve metric {selection.metric}; greedy serves "
        "pairwise and disf, lazy_greedy and stochastic_greedy serve facility_location"
    )


def _moments(
    whole: np.ndarray, bonus: np.ndarray, num_selected: int, weight: float, second: bool
) -> np.ndarray:
    chosen = np.empty(num_selected, dtype=np.int64)
    cost = np.zeros(len(whole))
    taken = np.zeros(len(whole), dtype=bool)
    sample = whole[np.linspace(0, len(whole) - 1, min(len(whole), 256)).astype(int)]
    cosines = sample @ sample.T
    scale = float(np.std(cosines**2 if second else cosines)) or 1.0
    for step in range(num_selected):
        # The mean over those chosen so far: the term's own scale, whatever the subset's size.
        gain = bonus - weight * cost / (scale * max(step, 1))
        gain[taken] = -np.inf
        best = int(np.argmax(gain))
        chosen[step], taken[best] = best, True
        cosine = (whole @ whole[best]).astype(np.float64)
        cost += cosine**2 if second else cosine
    return chosen


def _facility_location(
    whole: np.ndarray,
    bonus: np.ndarray,
    num_selected: int,
    weight: float,
    generator: np.random.Generator | None,
) -> np.ndarray:
    similarity = np.maximum(whole @ whole.T, 0)
    covered = np.zeros(len(whole), dtype=np.float32)
    scale = float(np.std(similarity.mean(axis=0))) or 1.0

    def gain(row: int) -> float:
        added = np.maximum(similarity[row] - covered, 0).mean(dtype=np.float64)
        return float(bonus[row] + weight * added / scale)

    chosen: list[int] = []
    if generator is not None:
        left = np.arange(len(whole))
        size = int(np.ceil(len(whole) / max(num_selected, 1) * np.log(100)))
        while len(chosen) < num_selected:
            some = np.sort(generator.choice(left, min(size, len(left)), replace=False))
            best = max(some.tolist(), key=gain)
            chosen.append(best)
            left = left[left != best]
            covered = np.maximum(covered, similarity[best])
        return np.array(chosen, dtype=np.int64)
    heap = [(-gain(row), row) for row in range(len(whole))]
    heapq.heapify(heap)
    while len(chosen) < num_selected:
        _, row = heapq.heappop(heap)
        fresh = gain(row)
        if not heap or (-fresh, row) <= heap[0]:
            chosen.append(row)
            covered = np.maximum(covered, similarity[row])
        else:
            heapq.heappush(heap, (-fresh, row))
    return np.array(chosen, dtype=np.int64)
