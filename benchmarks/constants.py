"""Effect of each constant of the learner: other values for one constant at a time, in fixed cases.

The numbers in `docs/log.md` come from this benchmark. `gain` is the gain of the objective over
random subsets, relative to the gain at the constant's default; `time` is CPU seconds, relative to
those at the default.

    python -m benchmarks.constants [--only expected] [--documents 10000] [--dimension 64]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.global_selection import (
    common_objective,
    mask_of,
    of_random,
    planted,
    select,
    union,
    write,
)

SMALL = 40
"""Documents of shards so small that every swap is tried."""

COPIES, NOISE = 200, 0.001
"""Documents of a group of near-copies, and the deviation of each number of their vectors."""

Case = Callable[[int, int], tuple[float, float]]
"""Gap or rounds of one case, and its gain over random; of so many documents and dimensions."""


def _learn(
    documents: int, dimension: int, ratio: float = 0.1, groups: int = 0, **selection: Any
) -> tuple[float, float]:
    from datamask.config.compute import Compute
    from datamask.config.selection import Selection
    from datamask.learning.learner import learn_mask

    shard = planted(documents, dimension, shards=1)
    features = shard.features.astype(np.float32)
    noise = np.random.default_rng(0).normal(scale=NOISE, size=(COPIES, dimension))
    for group in range(groups):
        rows = slice(group * COPIES, (group + 1) * COPIES)
        features[rows] = features[group * COPIES] + noise
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    settings = Selection(**selection)
    compute = Compute(device="cpu")
    found = learn_mask(
        features, shard.quality, settings, round(ratio * documents), seed=0, compute=compute
    ).metrics
    objective = found["objective"]
    return found["optimality_gap"] or 0.0, objective["selected"] - objective["random"]


def _disf(weight: float) -> Case:
    return lambda *size: _learn(*size, metric="disf", quality_weight=weight)


def _coverage(weight: float, ratio: float = 0.1, groups: int = 0) -> Case:
    given: dict[str, Any] = {
        "metric": "facility_location",
        "quality_weight": weight,
        "ratio": ratio,
        "groups": groups,
    }
    return lambda documents, dimension: _learn(2 * documents, dimension, **given)


def _pairwise(documents: int, dimension: int) -> tuple[float, float]:
    return _learn(documents, dimension, metric="pairwise", quality_weight=0.3)


def _beside(documents: int, dimension: int) -> tuple[float, float]:
    more = ({"name": "disf", "weight": 0.5},)
    given: dict[str, Any] = {
        "metric": "facility_location",
        "quality_weight": 0.3,
        "more_terms": more,
    }
    return _learn(documents, dimension, **given)


def _small(documents: int, dimension: int) -> tuple[float, float]:
    from datamask.config.selection import Selection
    from datamask.learning.learner import learn_mask

    corpus = planted(max(documents, 20 * SMALL), dimension, shards=1)
    gains = []
    for start in range(0, 20 * SMALL, SMALL):
        rows = slice(start, start + SMALL)
        features, quality = corpus.features[rows], corpus.quality[rows]
        found = learn_mask(features, quality, Selection(metric="pairwise"), 8, seed=0)
        objective = found.metrics["objective"]
        gains.append(objective["selected"] - objective["random"])
    return 0.0, float(np.mean(gains))


def _policy_gradient(documents: int, dimension: int) -> tuple[float, float]:
    given: dict[str, Any] = {
        "estimator": "policy_gradient",
        "metric": "pairwise",
        "steps": 1000,
        "rollouts": 32,
    }
    return _learn(documents // 10, dimension, **given)


def _method(name: str) -> Case:
    given: dict[str, Any] = {"metric": "pairwise", "quality_weight": 0.3, "method": name}
    return lambda documents, dimension: _learn(documents // 2, dimension, **given)


def _corpus(weight: float, rounds: int, tolerance: float = 0.0) -> Case:
    def work(documents: int, dimension: int) -> tuple[float, float]:
        shards, rows = 8, documents // 8
        corpus = planted(rows, dimension, shards)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write(corpus, folder / "source", rows)
            given: dict[str, Any] = {"metric": "disf", "quality_weight": weight}
            chosen = common_objective(folder / "source", folder / "scales", rows, dimension, given)
            value = union(corpus, chosen)
            options: dict[str, Any] = {
                "scope": "corpus",
                "rounds": rounds,
                "tolerance": tolerance,
            }
            run = select(folder / "source", folder / "run", rows, dimension, **chosen, **options)
            reached, rounds_done = value(mask_of(run)), run.last_round
        return float(rounds_done), reached - of_random(value, len(corpus.quality))

    return work


DISF = {"DiSF, lambda 0": _disf(0.0), "DiSF, lambda 0.5": _disf(0.5)}
COVERAGE = {"coverage in blocks, lambda 0.2": _coverage(0.2)}
OF_FEW = {"coverage in blocks, lambda 0.2, a hundredth": _coverage(0.2, 0.01)}
OF_COPIES = {"coverage in blocks, lambda 0.2, 20 groups of copies": _coverage(0.2, 0.1, 20)}
CORPUS = {
    "corpus, lambda 0.1, 3 rounds": _corpus(0.1, 3),
    "corpus, lambda 0.5, 3 rounds": _corpus(0.5, 3),
}

TRIALS: tuple[tuple[str, tuple[Any, ...], dict[str, Case]], ...] = (
    ("learning.expected.LONGEST_MOVE", (1.0, 10.0), DISF),
    ("learning.expected.GROWTH", (1.0, 10.0), DISF),
    ("learning.expected.MOST_CHANGE", (1.2, 8.0), DISF),
    ("learning.expected.LEAST_CHANGE", (0.0, 1e-3), DISF),
    ("learning.expected.PASSES_TO_STOP", (1, 4), DISF),
    ("learning.expected.LEAST_BATCH", (512, 8192), DISF),
    ("learning.expected.LARGEST_BATCH", (512, 16384), DISF),
    ("learning.swap_refinement.CANDIDATES", (0, 256, 8192), DISF),
    ("learning.swap_refinement.NEAREST", (64, 128, 2048), DISF),
    ("learning.swap_refinement.ROUNDS", (0, 5, 60, 600), DISF),
    ("learning.swap_refinement.LEAST_GAIN", (0.0, 1e-4), DISF),
    ("learning.swap_refinement.EVERY_SWAP", (0,), {"20 shards of 40, pairwise": _small}),
    ("learning.swap_refinement.PAIRS", (0, 100_000), {"20 shards of 40, pairwise": _small}),
    ("learning.optimality_gap.SOFTNESS",
     ((1.0,), (10.0,), (100.0,), (1.0, 1.7, 3.0, 5.5, 10.0, 30.0, 100.0)), {"gap": _pairwise}),
    ("learning.neighbours.WHOLE", (20_000,), COVERAGE),
    ("learning.neighbours.BLOCK", (512, 4096), COVERAGE),
    ("learning.neighbours.NEIGHBOURS", (16, 64), COVERAGE | OF_COPIES),
    ("learning.neighbours.MOST_NEIGHBOURS", (32, 300), OF_FEW),
    ("learning.neighbours.NEAR", (2048, 8192), COVERAGE | OF_FEW),
    ("learning.neighbours.CANDIDATES", (1, 4), COVERAGE | OF_FEW),
    ("learning.neighbours.PLACES", (4, 64), COVERAGE | OF_FEW),
    ("learning.coverage.SHARE_ADDED", (0.1, 1e9), OF_COPIES | OF_FEW),
    ("learning.neighbours.ROWS_AT_ONCE", (64, 4096), COVERAGE),
    ("learning.coverage.ROUNDS", (1, 3), COVERAGE | OF_COPIES | OF_FEW),
    ("learning.coverage.RANK", (1, 2, 8), OF_COPIES | OF_FEW),
    ("learning.coverage.ROUNDS_OF_MOMENTS", (1, 2, 8), {"coverage and DiSF": _beside}),
    ("learning.partition.SAMPLE", (256, 100_000), COVERAGE),
    ("learning.partition.ROUNDS", (2, 50), COVERAGE),
    ("learning.partition.MOVES", (0, 1, 6), COVERAGE),
    ("learning.policy_gradient.LEAST_SELECTED", (1, 64), {"pairwise": _policy_gradient}),
    ("learning.policy_gradient.WINDOWS", (5, 100), {"pairwise": _policy_gradient}),
    ("learning.scales.ENOUGH_SELECTED", (4096, 65_536), COVERAGE),
    ("objectives.disf.NOISE", (0.0, 1e-3), DISF),
    ("baselines.clustered.DOCUMENTS_PER_CLUSTER", (20, 500), {"semdedup": _method("semdedup")}),
    ("baselines.clustered.ITERATIONS", (5, 60), {"semdedup": _method("semdedup")}),
    ("learning.exchange.BATCHES", (1, 32), CORPUS),
    ("learning.exchange.LEAST_BATCH", (64, 1024), CORPUS),
    ("learning.exchange.SHARES", (4, 400), CORPUS),
    ("learning.exchange.LEAST_PART", (1e-5, 1e-2), CORPUS),
    ("learning.exchange.PASSES", (1, 3), CORPUS),
    ("learning.expected.SAMPLE_PASSES", (2, 5), CORPUS),
    ("selection.sampling.SAMPLE", (1024, 16_384), CORPUS),
    ("selection.sampling.STAND_INS", (1024, 4096, 65_536), CORPUS),
    ("selection.totals.ROUNDS_TO_STOP", (1, 4),
     {"corpus, lambda 0.1, until settled": _corpus(0.1, 20, 1e-2)}),
)  # fmt: skip


def trials(only: str, documents: int, dimension: int) -> Iterator[str]:
    """A table row for each value of a constant in each case."""
    own: dict[int, tuple[float, float, float]] = {}
    for name, values, cases in TRIALS:
        if only not in name:
            continue
        path, _, constant = f"datamask.{name}".rpartition(".")
        module = importlib.import_module(path)
        for (label, case), value in itertools.product(cases.items(), (None, *values)):
            if value is None and id(case) in own:
                continue
            given = getattr(module, constant) if value is None else value
            start = time.process_time()
            with contextlib.ExitStack() as stack:
                stack.enter_context(mock.patch.object(module, constant, given))
                if constant == "LONGEST_MOVE":  # the default of an argument holds its value
                    step_size = module.StepSize(given, given)
                    defaults = module.Ascent.__init__.__kwdefaults__
                    stack.enter_context(mock.patch.dict(defaults, step_size=step_size))
                extra, gain = case(documents, dimension)
            seconds = time.process_time() - start
            if value is None:
                own[id(case)] = extra, gain, seconds
                yield f"| {label} | as it is | 100 % | {seconds:.1f} s | {extra:.4g} |"
                continue
            _, best, least = own[id(case)]
            yield (
                f"| {label} | {name} = {value} | {100 * gain / best:.2f} % | "
                f"×{seconds / least:.2f} | {extra:.4g} |"
            )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="constants whose name contains this")
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--dimension", type=int, default=64)
    arguments = parser.parse_args()
    print("| case | constant | gain | time | gap, or rounds |")
    print("|:--|:--|--:|--:|--:|")
    for row in trials(arguments.only, arguments.documents, arguments.dimension):
        print(row, flush=True)


if __name__ == "__main__":
    main()
