"""Facility location over shards: what separate blocks lose, and what exchanging coverage brings.

Each line is a way to select a tenth of a finished run's documents, at lambda 0 and by the run's own
vectors. Its value is the mean cosine of all documents to the nearest selected one. The gain over
random subsets is a share of the gain of one learner that has all documents. Draws are random
samples of the documents, in the order of the source.

    python -m benchmarks.coverage_over_shards RUN [--documents 20000] [--draws 3]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import numpy as np

import datamask
from benchmarks.learner import coverage
from datamask.baselines.clustered import k_means
from datamask.embedding.vectors import read_vectors
from datamask.runs.opening import open_run

RATIO = 0.1
BLOCKS = 20
CENTROIDS = 61
"""Documents per centroid: 16,384 stand for a million."""

ROUNDS = 3

Select = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def alone(vectors: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """One learner has all documents."""
    chosen = datamask.select(vectors, ratio=RATIO, metric="facility_location", quality_weight=0)
    return np.asarray(chosen.indices)


def drawn(vectors: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """A random subset."""
    return generator.permutation(len(vectors))[: round(RATIO * len(vectors))]


def in_blocks(number: int, order: str) -> Select:
    """A tenth of each of several blocks: of the source's order, at random, or of k-means."""

    def select(vectors: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        rows = np.arange(len(vectors))
        if order == "random":
            rows = generator.permutation(rows)
        blocks = np.array_split(rows, number)
        if order == "similar":
            cluster, _ = k_means(vectors, number, 0)
            blocks = [np.flatnonzero(cluster == label) for label in range(number)]
        return np.concatenate(
            [block[alone(vectors[block], generator)] for block in blocks if len(block)]
        )

    return select


def exchanging(own: bool) -> Select:
    """Shards in turn cover centroids, and know how well the other shards' selections cover these.

    With *own*, a shard covers its own documents too, and centroids stand for those of the others.
    """

    def select(vectors: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        shards = np.array_split(np.arange(len(vectors)), BLOCKS)
        cluster, centroids = k_means(vectors, len(vectors) // CENTROIDS, 0)
        centroids = (centroids / np.linalg.norm(centroids, axis=1, keepdims=True)).astype("f4")
        masses = np.bincount(cluster, minlength=len(centroids)).astype(np.float32)
        covered = np.full((BLOCKS, len(centroids)), -1.0, np.float32)
        chosen = [np.arange(0)] * BLOCKS
        for _ in range(ROUNDS):
            for number, shard in enumerate(shards):
                probes, weights = centroids, masses
                best = np.delete(covered, number, 0).max(0)
                if own:
                    probes = np.concatenate([centroids, vectors[shard]])
                    others = masses - np.bincount(cluster[shard], minlength=len(masses))
                    weights = np.concatenate([others, np.ones(len(shard), "f4")])
                    best = np.concatenate([best, best[cluster[shard]]])
                cosines = vectors[shard] @ probes.T
                count = round(RATIO * (shard[-1] + 1)) - round(RATIO * shard[0])
                rows = _greedy(cosines, weights, best, count)
                chosen[number] = shard[rows]
                covered[number] = cosines[rows, : len(centroids)].max(0)
        return np.concatenate(chosen)

    return select


def _greedy(cosines: np.ndarray, weights: np.ndarray, best: np.ndarray, count: int) -> list[int]:
    """The rows that, one after the other, raise the coverage of the columns most."""
    rows: list[int] = []
    best = best.copy()
    for _ in range(count):
        gains = np.maximum(cosines - best, 0) @ weights
        gains[rows] = -1
        rows.append(int(gains.argmax()))
        best = np.maximum(best, cosines[rows[-1]])
    return rows


ORDERS = {
    "source": ("shards in the order of the source", (5, 20, 50, 100)),
    "random": ("random blocks", (2, 5, 10, 20)),
    "similar": ("blocks of similar documents", (5, 20, 50, 100)),
}
WAYS: dict[str, Select] = {
    "random subset": drawn,
    "one learner": alone,
    **{
        f"{number} {name}": in_blocks(number, order)
        for order, (name, numbers) in ORDERS.items()
        for number in numbers
    },
    "20 shards exchange coverage of centroids": exchanging(own=False),
    "the same, and cover their own documents": exchanging(own=True),
}


def draws(run: Path, documents: int, number: int) -> Iterator[np.ndarray]:
    """Samples of a run's unit vectors, in the order of the source; it need not be complete."""
    opened = open_run(run)
    paths = [opened.path("embeddings", shard) for shard in range(opened.num_shards)]
    width = opened.settings.embedding.dimension
    shards = [read_vectors(path, width) for path in paths if path.exists()]
    vectors = np.concatenate(shards).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    for draw in range(number):
        rows = np.random.default_rng(draw).choice(len(vectors), documents, replace=False)
        yield vectors[np.sort(rows)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--draws", type=int, default=3)
    given = parser.parse_args()
    print(f"{given.documents} documents of {given.run.name}, {date.today()}\n")
    print("| way | mean cosine to the selection | % of one learner's gain | CPU s |")
    print("|:--|--:|--:|--:|")
    samples = list(draws(given.run, given.documents, given.draws))
    values: dict[str, list[float]] = {}
    for name, select in WAYS.items():
        start = time.process_time()
        chosen = [
            select(vectors, np.random.default_rng(draw)) for draw, vectors in enumerate(samples)
        ]
        seconds = (time.process_time() - start) / len(samples)
        pairs = zip(samples, chosen, strict=True)
        values[name] = [coverage(vectors, rows) for vectors, rows in pairs]
        if name == "random subset":
            continue
        low, high = values["random subset"], values["one learner"]
        shares = [
            100 * (value - a) / (b - a) for value, a, b in zip(values[name], low, high, strict=True)
        ]
        means = ", ".join(f"{value:.4f}" for value in values[name])
        print(f"| {name} | {means} | {min(shares):.1f} to {max(shares):.1f} | {seconds:.0f} |")


if __name__ == "__main__":
    main()
