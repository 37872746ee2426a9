"""A graph of nearest neighbours with lazy greedy on it, beside `datamask.select`.

faiss (extra `bench`) lists the nearest documents of each document: exactly up to `EXACT` documents,
by inverted lists above `LISTED`. Lazy greedy maximises quality and coverage on these lists; a
document outside them counts as the last one. Both get the same scales. Gain is what a selection has
more than random ones, in coverage of at most `JUDGED` documents, as a share of ours. Seconds are of
CPU on one thread, the least of the repeats.

    python -m benchmarks.neighbour_graph [--data text debian clustered] [--rows 10000 25000 100000]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import datamask
from benchmarks.inputs import load
from benchmarks.learner import coverage
from benchmarks.neighbour_script import graph, greedy

EXACT, LISTED, JUDGED, SUBSETS = 25_000, 12_288, 16_384, 4
SEARCHES = {"all": 0, "8 lists": 8, "32 lists": 32}
"""How many inverted lists a document is compared with."""
WEIGHT, RATIO = 0.3, 0.1
METRIC = "facility_location"


def timed(function: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Least CPU seconds, and the last result."""
    least = np.inf
    for _ in range(repeats):
        start = time.process_time()
        result = function()
        least = min(least, time.process_time() - start)
    return least, result


def compare(folder: Path, data: str, rows: int, repeats: int) -> None:
    """Print a line for each way to make the graph."""
    features, quality = load(folder, data, rows)
    vectors = features.astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)

    def select() -> Any:
        return datamask.select(vectors, quality, ratio=RATIO, metric=METRIC, quality_weight=WEIGHT)

    seconds, ours = timed(select, repeats)
    count, scales = len(ours.indices), ours.metrics["scales"]
    of_quality, of_metric = WEIGHT / scales["quality"], (1 - WEIGHT) / scales[METRIC]

    def value(some: np.ndarray) -> float:
        covers = coverage(vectors, some, JUDGED)
        return float(of_quality * quality[some].mean() + of_metric * covers)

    generator = np.random.default_rng(3)
    chance = np.mean([value(generator.permutation(rows)[:count]) for _ in range(SUBSETS)])
    best = value(ours.indices) - chance
    bonus = of_quality / of_metric * quality / count
    for name, searched in SEARCHES.items():
        if rows > LISTED if searched else rows <= EXACT:
            listing, lines = timed(partial(graph, vectors, searched), repeats)
            cosines, near = lines
            choosing, chosen = timed(partial(greedy, cosines, near, bonus, count), repeats)
            gain = 100 * (value(chosen) - chance) / best
            cells = f"{seconds:.1f} | {name} | {listing:.1f} + {choosing:.1f} | {gain:.1f} %"
            print(f"| {data} | {rows:,} | {cells} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", nargs="+", default=["text", "debian", "clustered"])
    parser.add_argument("--rows", nargs="+", type=int, default=[10_000, 25_000, 100_000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("runs/bench"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| data | documents | `select`, s | compared with | graph + greedy, s | gain |")
    print("|:--|--:|--:|:--|--:|--:|")
    for data in arguments.data:
        for rows in arguments.rows:
            compare(arguments.folder, data, rows, arguments.repeats)


if __name__ == "__main__":
    main()
