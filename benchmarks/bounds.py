"""How far a selection can be from the best one: an upper bound of every selection's value.

- facility location: the Lagrangian dual of its linear relaxation. For any prices u of the N
  documents, no selection of S is above Σ_i u_i + the sum of the S largest
  q_j + Σ_i max(0, c_ij − u_i). Subgradient steps lower it (Polyak's step length).
- pairwise similarity: concave in inclusion probabilities, so no selection is above value +
  Frank-Wolfe gap at any of them (Jaggi 2013).
- DiSF: the same, with each dimension's mean and deviation held at those of our selection. So the
  bound is of selections with these means and deviations, not of all.

Each line is of one draw, in float64 or float32 on all documents, with the scales that
`datamask.select` used. The gain is over random subsets; 100 % is the bound.

    python -m benchmarks.bounds [--rows 5000] [--draws 3]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np

import datamask
from benchmarks.inputs import load
from datamask.objectives.disf import DIVISOR

CASES = [
    ("facility_location", 0.0, 0.1),
    ("facility_location", 0.1, 0.1),
    ("facility_location", 0.5, 0.1),
    ("facility_location", 0.5, 0.5),
    ("pairwise", 0.0, 0.1),
    ("pairwise", 0.5, 0.1),
    ("disf", 0.0, 0.1),
    ("disf", 0.5, 0.1),
]
SUBSETS = 8
"""Random subsets whose mean value is gain 0."""
PATIENCE = 10
"""Steps without a lower bound until the steps are halved, from the best prices."""


@dataclass(frozen=True)
class Problem:
    """What is maximised over subsets of S of N documents: a linear and a diverse part.

    Args:
        vectors: unit vectors (N x D, float32).
        linear: what each document adds by its quality (N).
        weight: of the diverse part, divided by its scale.
        count: S.
    """

    vectors: np.ndarray
    linear: np.ndarray
    weight: float
    count: int


def covering_bound(
    problem: Problem, rows: np.ndarray, steps: int = 150
) -> tuple[Callable[[np.ndarray], float], float]:
    """The value of rows by facility location, and the bound of it."""
    factor = problem.weight / len(problem.vectors)
    cosines = problem.vectors @ problem.vectors.T

    def value(some: np.ndarray) -> float:
        best = cosines[:, some].max(1).sum(dtype=np.float64)
        return float(factor * best + problem.linear[some].sum())

    least, linear = value(rows) / factor, problem.linear / factor
    prices = np.sort(cosines[:, rows], axis=1)[:, -2:].mean(1)
    best_prices, bound, length, failures = prices, np.inf, 1.0, 0
    for _ in range(steps):
        gains = linear.copy()
        for start in range(0, len(gains), 512):
            above = cosines[start : start + 512] - prices
            gains[start : start + 512] += np.maximum(above, 0).sum(1, dtype=np.float64)
        chosen = np.argpartition(-gains, problem.count)[: problem.count]
        dual = prices.sum(dtype=np.float64) + gains[chosen].sum()
        if dual < bound:
            best_prices, bound, failures = prices, dual, 0
        else:
            failures += 1
        if failures == PATIENCE:
            prices, length, failures = best_prices, length / 2, 0
            continue
        slope = 1.0 - (cosines[:, chosen] > prices[:, None]).sum(1)
        if not slope.any():
            break
        step = length * (dual - least) / float(slope @ slope)
        prices = (prices - step * slope).astype(np.float32)
    return value, factor * bound


def concave_bound(
    problem: Problem, rows: np.ndarray, metric: str, steps: int = 150
) -> tuple[Callable[[np.ndarray], float], float]:
    """The value of rows by a metric that is minus a square of sums, and the bound of it."""
    count, wide = problem.count, problem.vectors.astype(np.float64)
    if metric == "disf":
        chosen = wide[rows]
        standard = (wide - chosen.mean(0)) / (chosen.std(0, ddof=1) + 1e-12)
        factor, constant = problem.weight / DIVISOR / (count - 1) ** 2, 0.0

        def summed(some: np.ndarray) -> np.ndarray:
            products: np.ndarray = standard[some].T @ standard[some]
            np.fill_diagonal(products, 0)
            return products

        def along(sums: np.ndarray) -> np.ndarray:
            return np.asarray(np.einsum("nd,nd->n", standard @ sums, standard))
    else:
        factor = problem.weight / (count * (count - 1))
        constant = problem.weight / (count - 1)

        def summed(some: np.ndarray) -> np.ndarray:
            return np.asarray(wide[some].sum(0))

        def along(sums: np.ndarray) -> np.ndarray:
            return np.asarray(wide @ sums)

    def value(some: np.ndarray) -> float:
        sums = summed(some)
        return float(problem.linear[some].sum() - factor * (sums * sums).sum() + constant)

    sums, quality, bound = summed(rows), problem.linear[rows].sum(), np.inf
    for _ in range(steps):
        square = factor * (sums * sums).sum()
        gradient = problem.linear - 2 * factor * along(sums)
        best = np.argpartition(-gradient, count)[:count]
        gap = gradient[best].sum() - (quality - 2 * square)
        bound = min(bound, quality - square + constant + gap)
        towards = summed(best) - sums
        more = problem.linear[best].sum() - quality
        curved = 2 * factor * (towards * towards).sum()
        if gap <= 0 or curved == 0:
            break
        length = min(1.0, (more - 2 * factor * (sums * towards).sum()) / curved)
        sums, quality = sums + length * towards, quality + length * more
    return value, bound


def share(folder: Path, rows: int, draw: int, case: tuple[str, float, float]) -> float:
    """Our gain over random subsets, as a share of the bound's."""
    metric, quality_weight, ratio = case
    features, quality = load(folder, "text", 2 * rows)
    drawn = np.sort(np.random.default_rng(draw).choice(2 * rows, rows, replace=False))
    vectors = features[drawn].astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    score = quality[drawn].astype(np.float64)
    ours = datamask.select(
        vectors, score, ratio=ratio, metric=metric, quality_weight=quality_weight
    )
    count, scales = len(ours.indices), ours.metrics["scales"]
    linear = quality_weight * score / scales.get("quality", 1.0) / count
    problem = Problem(vectors, linear, (1 - quality_weight) / scales.get(metric, 1.0), count)
    if metric == "facility_location":
        value, bound = covering_bound(problem, ours.indices)
    else:
        value, bound = concave_bound(problem, ours.indices, metric)
    spread = [np.random.default_rng(99 + k).permutation(rows)[:count] for k in range(SUBSETS)]
    if metric == "disf":  # its value at the standardisation of each subset
        base = np.mean([concave_bound(problem, some, metric, 0)[0](some) for some in spread])
    else:
        base = np.mean([value(some) for some in spread])
    return float((value(ours.indices) - base) / (bound - base))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=5_000)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("runs/bench"))
    arguments = parser.parse_args()
    print(f"{date.today()}, {arguments.rows} documents\n")
    print("| metric | lambda | share | gain, % of the bound's |\n|:--|--:|--:|--:|")
    for case in CASES:
        shares = [
            100 * share(arguments.folder, arguments.rows, draw, case)
            for draw in range(arguments.draws)
        ]
        cells = " | ".join(map(str, case))
        print(f"| {cells} | {min(shares):.1f} to {max(shares):.1f} |", flush=True)


if __name__ == "__main__":
    main()
