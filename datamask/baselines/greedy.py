"""Greedy maximisation of the objective that masks are learned by: a comparator of quadratic cost.

`greedy` adds one document S times: the one that gives the largest objective together with the n
documents chosen so far, with the run's weights and scales. Pairwise similarity and DiSF are sums of
a kernel over pairs, updated in O(N D) per step. DiSF standardises each dimension by mean and
deviation of the shard, where the objective uses those of the subset; this is the only difference.
Other terms are evaluated for every candidate, those of sums of x in O(N D) per step.

`lazy_greedy` (Minoux 1978) and `stochastic_greedy` (Mirzasoleiman et al. 2015) maximise quality and
facility location together: λ / σ · Σ q / S plus coverage, which is the objective at S documents.
All documents are covered, as in learning, not only the sample by which the term is reported.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from datamask.baselines.cosines import cosines
from datamask.errors import SettingsError
from datamask.objectives.disf import DIVISOR, EPSILON, DiSF
from datamask.objectives.facility_location import FacilityLocation
from datamask.objectives.pairwise import PairwiseSimilarity
from datamask.objectives.protocol import MomentObjective, Moments
from datamask.objectives.quality import Quality
from datamask.objectives.weighted import WeightedTerm

LAZY_LIMIT = 20_000
"""Most documents for which all similarities are kept in memory
(docs/log.md#comparators)."""

# See docs/log.md#memory.
ROWS_AT_ONCE = 4096


def check(method: str, terms: Sequence[WeightedTerm]) -> None:
    """Check that a greedy method supports the metric and every term with a weight.

    Raises:
        SettingsError: names the terms that it would ignore.
    """
    needed = [*terms[:2], *(term for term in terms[2:] if term.weight)]
    ignored = [term.objective.name for term in needed if not _serves(method, term)]
    if ignored:
        raise SettingsError(
            f"selection.method: {method} does not serve {', '.join(ignored)}; greedy serves "
            "quality, pairwise, disf and terms of moments up to order 1, lazy_greedy and "
            "stochastic_greedy serve quality and facility_location"
        )


def _serves(method: str, term: WeightedTerm) -> bool:
    objective = term.objective
    if method != "greedy":
        return isinstance(objective, Quality) or (
            isinstance(objective, FacilityLocation) and term.weight >= 0
        )
    return isinstance(objective, DiSF) or (
        isinstance(objective, MomentObjective) and objective.order < 2
    )


def choose(
    features: np.ndarray,
    quality: np.ndarray,
    scores: Mapping[str, np.ndarray],
    num_selected: int,
    terms: Sequence[WeightedTerm],
) -> np.ndarray:
    """`greedy`: the chosen rows in the order of choice; shape S. Scores have shape N."""
    active = [term for term in terms if term.weight]
    kernels = [_kernel(term, features) for term in active if isinstance(term.objective, KERNELS)]
    others = [term for term in active if not isinstance(term.objective, KERNELS)]
    costs = [np.zeros(len(features)) for _ in kernels]
    taken = np.zeros(len(features), dtype=bool)
    chosen = np.empty(num_selected, dtype=np.int64)
    columns = {"": quality, **scores}
    sums = dict.fromkeys(columns, 0.0)
    first = np.zeros(features.shape[1])
    for step in range(num_selected):
        value = np.zeros(len(features))
        for term in others:
            value += term.factor * _with_each(term, step + 1, sums, columns, first, features)
        for cost, (_, own, factor) in zip(costs, kernels, strict=True):
            value += factor(step + 1) * (2 * cost + own)
        value[taken] = -np.inf
        best = int(np.argmax(value))
        chosen[step], taken[best] = best, True
        first += features[best]
        sums = {name: total + float(columns[name][best]) for name, total in sums.items()}
        for cost, (pair, _, _) in zip(costs, kernels, strict=True):
            cost += pair(best)
    return chosen


KERNELS = (PairwiseSimilarity, DiSF)
Kernel = tuple[Callable[[int], np.ndarray], np.ndarray, Callable[[int], float]]
"""The kernel of a row with all rows, that of each with itself, and the factor at n documents."""


def _kernel(term: WeightedTerm, whole: np.ndarray) -> Kernel:
    if isinstance(term.objective, PairwiseSimilarity):
        own = (whole**2).sum(1, dtype=np.float64) - 1  # the objective subtracts 1
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


def _with_each(
    term: WeightedTerm,
    number: int,
    sums: Mapping[str, float],
    columns: Mapping[str, np.ndarray],
    first: np.ndarray,
    whole: np.ndarray,
) -> np.ndarray:
    """The raw value of a term for the chosen documents and each candidate; shape N."""
    objective = term.objective
    assert isinstance(objective, MomentObjective)
    count = torch.tensor(float(number), dtype=torch.float64)
    start = torch.from_numpy(first if objective.order else first[:0])
    names = list(sums)[1:]

    def value(values: Tensor, x: Tensor) -> Tensor:
        scores = dict(zip(names, values[1:], strict=True))
        return objective.of_moments(
            Moments(count, values[0], scores, start + x, start.new_zeros(0, 0))
        )

    found = []
    for at in range(0, len(whole), ROWS_AT_ONCE):
        rows = slice(at, at + ROWS_AT_ONCE)
        values = np.stack([sums[name] + columns[name][rows] for name in sums], axis=1)
        x = whole[rows, : len(start)].astype(np.float64)
        parts = torch.func.vmap(value)(torch.from_numpy(values), torch.from_numpy(x))
        found.append(parts.numpy())
    return np.concatenate(found)


def choose_covering(
    features: np.ndarray,
    quality: np.ndarray,
    num_selected: int,
    terms: Sequence[WeightedTerm],
    generator: np.random.Generator | None,
) -> np.ndarray:
    """`lazy_greedy`, or `stochastic_greedy` with a *generator*: the chosen rows in order; shape S.

    Raises:
        SettingsError: the shard is too large.
    """
    if len(features) > LAZY_LIMIT:
        raise SettingsError(
            f"selection.method: lazy_greedy and stochastic_greedy keep all pairs in memory, at "
            f"most {LAZY_LIMIT} documents, this shard has {len(features)}; lower "
            "plan.rows_per_shard"
        )
    of_quality = sum(term.factor for term in terms if isinstance(term.objective, Quality))
    weight = sum(term.factor for term in terms if isinstance(term.objective, FacilityLocation))
    bonus = of_quality * quality / max(num_selected, 1)
    similarity = cosines(features, features)
    covered = np.full(len(features), -1.0, dtype=np.float32)

    def gain(row: int) -> float:
        """In quality and facility location, given the documents chosen so far."""
        added = np.maximum(similarity[row] - covered, 0).mean(dtype=np.float64)
        return float(bonus[row] + weight * added)

    chosen: list[int] = []
    left = np.arange(len(features))
    size = int(np.ceil(len(features) / max(num_selected, 1) * np.log(100)))
    bounds = [] if generator else [(-gain(row), row) for row in left.tolist()]
    heapq.heapify(bounds)
    while len(chosen) < num_selected:
        if generator:
            some = np.sort(generator.choice(left, min(size, len(left)), replace=False))
            best = max(some.tolist(), key=gain)
            left = left[left != best]
        else:
            _, best = heapq.heappop(bounds)
            fresh = -gain(best), best
            if bounds and fresh > bounds[0]:
                heapq.heappush(bounds, fresh)
                continue
        chosen.append(best)
        np.maximum(covered, similarity[best], out=covered)
    return np.array(chosen, dtype=np.int64)
