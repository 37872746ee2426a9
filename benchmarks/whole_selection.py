"""What `datamask.select` costs as a whole, beside a greedy algorithm that is given the scales.

Each line is of several draws of a corpus; each selection is made in a process of its own. Seconds
are of CPU on one thread: for ours, all of `datamask.select`, with scales, swaps and logits; for the
greedy algorithm (incremental for DiSF, lazy for facility location), its choice alone. The gain over
random subsets is a share of greedy's: values in float64, of all documents, in the same scales.

`exact` and `near` are corpora of which half the documents copy the other half, exactly or with a
noise of `NOISE` times the length of the vector.

Above `GREEDY` documents, a draw is the whole corpus, only ours selects, the gain is in units of the
joint objective, and coverage is that of `JUDGED` documents.

    python -m benchmarks.whole_selection [--rows 10000] [--draws 3] [--metric facility_location]
    python -m benchmarks.whole_selection --default --rows 1000000 --draws 1
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.inputs import load
from benchmarks.learner import coverage
from datamask.baselines.greedy import LAZY_LIMIT, choose, choose_covering
from datamask.config.selection import Selection
from datamask.learning import learner
from datamask.objectives.disf import DIVISOR
from datamask.objectives.weighted import build_terms

CASES = [
    *(("facility_location", 0.3, 0.1, kind) for kind in ("text", "clustered")),  # The default.
    *(
        ("facility_location", weight, ratio, "text")
        for ratio in (0.1, 0.5)
        for weight in (0.0, 0.1, 0.5)
    ),
    ("disf", 0.5, 0.1, "text"),
    ("disf", 0.0, 0.1, "text"),
    *(
        ("facility_location", weight, 0.1, kind)
        for kind in ("exact", "near")
        for weight in (0.5, 0)
    ),
]
NOISE = 0.1
GREEDY, JUDGED = LAZY_LIMIT, 4096
SUBSETS = 8
"""Random subsets whose mean value is gain 0."""


def correlation(features: np.ndarray) -> float:
    """DiSF, negative: the sum of squares of correlations between dimensions."""
    centred = features - features.mean(0)
    standard = centred / (centred.std(0, ddof=1) + 1e-12)
    products = standard.T @ standard / (len(features) - 1)
    return -float((products**2).sum() - (np.diag(products) ** 2).sum()) / DIVISOR


def corpus(folder: Path, rows: int, draw: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Vectors and quality of one draw."""
    generator = np.random.default_rng(draw)
    number = rows if rows > GREEDY else 2 * rows
    features, quality = load(folder, "clustered" if kind == "clustered" else "text", number)
    drawn = np.sort(generator.choice(number, rows, replace=False))
    if kind in ("exact", "near"):
        drawn[rows // 2 :] = drawn[: rows - rows // 2]
    vectors = features[drawn].astype(np.float32)
    if kind == "near":
        noise = generator.standard_normal(vectors.shape, dtype=np.float32)[rows // 2 :]
        vectors[rows // 2 :] += NOISE / np.sqrt(vectors.shape[1]) * noise
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True), quality[drawn]


def select(
    folder: Path, rows: int, draw: int, case: tuple[str, float, float, str]
) -> dict[str, Any]:
    """CPU seconds and gains of both on one draw."""
    import datamask

    metric, weight, ratio, kind = case
    torch.set_num_threads(1)
    vectors, score = corpus(folder, rows, draw, kind)
    with timed(learner, "references") as scales_took:
        start = time.process_time()
        ours = datamask.select(vectors, score, ratio=ratio, metric=metric, quality_weight=weight)
        seconds = time.process_time() - start

    count, scales = len(ours.indices), ours.metrics["scales"]
    terms = build_terms(Selection(metric=metric, quality_weight=weight))
    scaled = [replace(term, scale=scales.get(term.objective.name, 1.0)) for term in terms]
    order = np.argsort(-score, kind="stable")
    greedy = choose if metric == "disf" else choose_covering
    is_large = rows > GREEDY
    start = time.process_time()
    chosen = ours.indices
    if not is_large:
        chosen = order[greedy(vectors[order], score[order], count, scaled)]
    rival = time.process_time() - start

    wide, judged = (vectors, JUDGED) if is_large else (vectors.astype(np.float64), rows)
    subsets = 2 if is_large else SUBSETS
    spread = [np.random.default_rng(99 + k).permutation(rows)[:count] for k in range(subsets)]
    values = []
    for some in (ours.indices, chosen, *spread):
        diverse = correlation(wide[some]) if metric == "disf" else coverage(wide, some, judged)
        values.append((score[some].mean(), diverse))
    table = np.array(values)
    units = scales.get("quality", 1.0), scales.get(metric, 1.0)
    joint = weight * table[:, 0] / units[0] + (1 - weight) * table[:, 1] / units[1]
    gains = joint - joint[2:].mean()
    return {
        "ours": seconds,
        "scales": 100 * sum(scales_took) / seconds,
        "greedy": rival,
        "gain": 100 * gains[0] if is_large else 100 * gains[0] / gains[1],
        "quality": table[0, 0],
        "coverage": table[0, 1],
        "random": table[2:, 1].mean(),
    }


@contextmanager
def timed(module: Any, name: str) -> Iterator[list[float]]:
    """CPU seconds of each call of a function of a module."""
    seconds: list[float] = []
    function = getattr(module, name)

    def call(*given: Any, **named: Any) -> Any:
        start = time.process_time()
        try:
            return function(*given, **named)
        finally:
            seconds.append(time.process_time() - start)

    setattr(module, name, call)
    try:
        yield seconds
    finally:
        setattr(module, name, function)


def main() -> None:
    """Run each case and draw in a process of its own, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--metric", default="", help="only lines of this metric")
    parser.add_argument("--default", action="store_true", help="only the default, on two corpora")
    parser.add_argument("--folder", type=Path, default=Path("runs/bench"))
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        draw, number = map(int, arguments.case.split(","))
        print(json.dumps(select(arguments.folder, arguments.rows, draw, CASES[number])))
        return
    kind = torch.backends.cpu.get_cpu_capability()
    print(f"{date.today()}, {arguments.rows} documents, {platform.machine()} with {kind}\n")
    units = {"ours": " s", "scales": " %", "greedy": " s", "gain": " %"}
    units |= {"quality": "", "coverage": "", "random": ""}
    print("| metric | lambda | share | corpus | `select` | of it scales | greedy | gain", end=" ")
    print("| quality | coverage | coverage of random documents |")
    print("|:--|--:|--:|:--|--:|--:|--:|--:|--:|--:|--:|")
    for number, case in enumerate(CASES):
        if arguments.metric not in ("", case[0]) or (arguments.default and case[1] != 0.3):
            continue
        results = []
        for draw in range(arguments.draws):
            command = [sys.executable, "-m", "benchmarks.whole_selection"]
            command += ["--rows", str(arguments.rows), "--folder", str(arguments.folder)]
            command += ["--case", f"{draw},{number}"]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            results.append(json.loads(output.splitlines()[-1]))
        cells = [*map(str, case)]
        for name, unit in units.items():
            values = [result[name] for result in results]
            cells.append(
                f"{min(values):.{1 if unit else 3}f} to {max(values):.{1 if unit else 3}f}{unit}"
            )
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
