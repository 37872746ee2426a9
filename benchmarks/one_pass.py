"""A mask model on documents that no learner has seen: share kept, and gain against learning there.

The model of a selection of N documents judges 10,000 others of the same distribution (`planted` of
`benchmarks.global_selection`). Its selection is compared with one that is learnt on the others
themselves, with as many documents.

    python -m benchmarks.one_pass [--dimension 64] [--documents 2000 20000]
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from benchmarks.global_selection import planted
from datamask.config.compute import Compute
from datamask.config.selection import Selection
from datamask.learning import published
from datamask.learning.data import moments_of, raw_values
from datamask.learning.learner import Problem, learn, refine, scale
from datamask.learning.mask_model import MaskModel, mask_model
from datamask.learning.resuming import Curve

OTHERS, RATIO, STEPS = 10_000, 0.1, 300
CASES = (
    *(("disf", 0.9), ("disf", 0.5), ("disf", 0.1)),
    *(("pairwise", 0.5), ("pairwise", 0.1), ("vendi", 0.5)),
)


def problem_of(
    features: np.ndarray, quality: np.ndarray, selection: Selection, number: int
) -> Problem:
    """A selection of so many documents, not learnt yet."""
    return scale(features, quality, selection, number, 0, {}, Compute(device="cpu"))


def learnt(problem: Problem) -> np.ndarray:
    """The mask."""
    return refine(problem, learn(problem, Curve(problem.objective, STEPS, None, None)))


def model_of(problem: Problem, mask: np.ndarray) -> MaskModel:
    """The mask model of a learnt selection, with its threshold."""
    moments = moments_of(problem.data, torch.from_numpy(mask).float(), 2)
    number = int(mask.sum())
    unit = published.unit(number, len(mask), True)
    found = mask_model(problem.objective.terms, moments, unit)
    threshold = published.threshold_of(found.judge(problem.data, mask).logits, number)
    return mask_model(problem.objective.terms, moments, unit, threshold)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dimension", type=int, default=64)
    parser.add_argument("--documents", type=int, nargs="+", default=[2000, 20000])
    arguments = parser.parse_args()
    most = max(arguments.documents)
    corpus = planted((most + OTHERS) // 20, arguments.dimension, 20, seed=3)
    order = np.random.default_rng(0).permutation(len(corpus.quality))
    others, rest = order[:OTHERS], order[OTHERS:]
    print("| metric | lambda | N | share kept | share of gain | judging | learning there |")
    print("|:--|--:|--:|--:|--:|--:|--:|")
    for metric, weight in CASES:
        selection = Selection(metric=metric, quality_weight=weight, steps=STEPS)
        for number in arguments.documents:
            rows = rest[:number]
            size = round(RATIO * number)
            own = problem_of(corpus.features[rows], corpus.quality[rows], selection, size)
            model = model_of(own, learnt(own))
            there = problem_of(corpus.features[others], corpus.quality[others], selection, 1)
            start = time.perf_counter()
            kept = model.judge(there.data).logits > 0
            judging = time.perf_counter() - start
            count = int(kept.sum())
            there = problem_of(corpus.features[others], corpus.quality[others], selection, count)
            start = time.perf_counter()
            best = learnt(there)
            learning = time.perf_counter() - start
            objective = there.objective
            values = [
                objective.join(raw_values(objective.terms, there.data, torch.from_numpy(mask)))
                for mask in (kept, best)
            ]
            random = objective.join({name: one.mean for name, one in there.random.items()})
            gain = (values[0] - random) / (values[1] - random)
            print(
                f"| {metric} | {weight} | {number:,} | {count / OTHERS:.1%} | {gain:.1%} | "
                f"{judging:.2f} s | {learning:.2f} s |",
                flush=True,
            )


if __name__ == "__main__":
    main()
