"""What λ means at each size: shares of the best quality and of the best diversity.

Documents of one distribution are selected at several sizes, and the selections are judged from
outside, by this program's own sums over all documents:

    q = what the mean quality gains over random documents / what the best by score gain
    d = what the metric gains over random documents / what the selection with λ = 0 gains

Equal q and d at every size mean that λ is one setting, and not another one in every shard. With
`--shards`, the largest size is also cut into shards that select by themselves.

    python -m benchmarks.lambda_by_size [--sizes 4000 16000 64000] [--metrics facility_location]
        [--ratios 0.1] [--lambdas 0.1 0.3 0.5] [--shards 1 10 100] [--texts FOLDER [--model PATH]]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch

import datamask
from datamask.config.compute import Compute
from datamask.config.inputs import Embedding
from datamask.embedding.loose_texts import embed_texts

WIDTH, CLUSTERS, JUDGED = 64, 400, 64_000
"""Dimensions and clusters of synthetic documents; most documents whose nearest selected one is
sought."""


def clustered(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Clusters whose sizes follow a power law, and a score that partly follows the cluster."""
    generator = np.random.default_rng(0)
    centres, weight = generator.standard_normal((CLUSTERS, WIDTH)), 1 / np.arange(1, CLUSTERS + 1)
    label = generator.choice(CLUSTERS, number, p=weight / weight.sum())
    features = centres[label] + 0.9 * generator.standard_normal((number, WIDTH))
    quality = generator.standard_normal(number) + 0.7 * generator.standard_normal(CLUSTERS)[label]
    return _unit(features), quality


def plain(number: int) -> tuple[np.ndarray, np.ndarray]:
    """No clusters: dimensions of falling variance, and a score along a direction."""
    generator = np.random.default_rng(1)
    features = _unit(generator.standard_normal((number, WIDTH)) / np.arange(1, WIDTH + 1) ** 0.5)
    return features, 2 * features @ generator.standard_normal(WIDTH) + generator.standard_normal(
        number
    )


def texts(folder: Path, number: int, model: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of the texts of a folder in a random order; the score is their length and noise.

    The vectors are lexical, or from a model of sentence-transformers with 384 dimensions.
    """
    table = pq.read_table(folder, columns=["text"])
    order = np.random.default_rng(2).permutation(len(table))[:number]
    read = table["text"].take(order).to_pylist()
    embedding = Embedding(method="lexical")
    if model:
        embedding = Embedding(model=model, prefix="", dimension=384, max_tokens=128)
    vectors = embed_texts(read, embedding, Compute())
    noise = np.random.default_rng(3).standard_normal(len(read))
    return vectors, np.log1p([len(text) for text in read]) + noise


def _unit(features: np.ndarray) -> np.ndarray:
    unit: np.ndarray = features / np.linalg.norm(features, axis=1, keepdims=True)
    return unit.astype(np.float32)


def diversity(metric: str, features: np.ndarray, mask: np.ndarray) -> float:
    """The metric by definition, higher is better; facility location of at most `JUDGED`."""
    chosen = torch.from_numpy(features[mask])
    if metric == "facility_location":
        rows = np.random.default_rng(4).permutation(len(features))[:JUDGED]
        parts = torch.split(torch.from_numpy(features[rows]), 1024)
        return float(torch.cat([(part @ chosen.T).amax(1) for part in parts]).double().mean())
    size = len(chosen)
    if metric == "pairwise":
        return -float((chosen.double().sum(0).square().sum() - size) / (size * (size - 1)))
    correlation = np.corrcoef(chosen.double().numpy().T)
    return -float(np.square(correlation).sum() - len(correlation)) / 10_000


def select(
    features: np.ndarray, quality: np.ndarray, shards: int, **settings: Any
) -> tuple[np.ndarray, float]:
    """The mask of shards that each select their share, and CPU seconds."""
    start, masks = time.process_time(), []
    for rows in np.array_split(np.arange(len(quality)), shards):
        masks.append(datamask.select(features[rows], quality[rows], **settings).mask)
    return np.concatenate(masks), time.process_time() - start


def cases(
    features: np.ndarray,
    quality: np.ndarray,
    metric: str,
    ratio: float,
    lambdas: list[float],
    k: int,
) -> Iterator[tuple[float, float, float, float]]:
    """λ, q, d and CPU seconds of each selection of *k* shards."""
    size = round(ratio * len(quality))
    generator = np.random.default_rng(5)
    drawn = []
    for _ in range(3):
        mask = np.zeros(len(quality), bool)
        mask[generator.permutation(len(quality))[:size]] = True
        drawn.append(diversity(metric, features, mask))
    random, best_quality = float(np.mean(drawn)), np.sort(quality)[-size:].mean()
    most, _ = select(features, quality, k, ratio=ratio, metric=metric, quality_weight=0.0)
    best = diversity(metric, features, most)
    for weight in lambdas:
        settings: dict[str, Any] = {"ratio": ratio, "metric": metric, "quality_weight": weight}
        mask, seconds = select(features, quality, k, **settings)
        gained = (quality[mask].mean() - quality.mean()) / (best_quality - quality.mean())
        covered = (diversity(metric, features, mask) - random) / (best - random)
        yield weight, gained, covered, seconds


def main() -> None:
    """Print a row for each corpus, metric, ratio and size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[4000, 16_000, 64_000])
    parser.add_argument("--metrics", nargs="+", default=["facility_location", "disf", "pairwise"])
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.1])
    parser.add_argument("--lambdas", type=float, nargs="+", default=[0.1, 0.3, 0.5])
    parser.add_argument("--shards", type=int, nargs="+", default=[1])
    parser.add_argument("--texts", type=Path, help="folder of Parquet files with a column text")
    parser.add_argument("--model", help="folder of a model that embeds the texts")
    given = parser.parse_args()
    torch.set_num_threads(1)
    largest = max(given.sizes)
    corpora = {"clusters": clustered(largest), "no clusters": plain(largest)}
    if given.texts:
        corpora = {"texts": texts(given.texts, largest, given.model)}
    print("| corpus | metric | ratio | N | shards |", *(f"λ = {w:g}: q d |" for w in given.lambdas))
    print("|:--|:--|--:|--:|--:|" + "--:|" * len(given.lambdas))
    for name, (features, quality) in corpora.items():
        for metric in given.metrics:
            for ratio in given.ratios:
                for number in given.sizes:
                    for shards in given.shards if number == largest else [1]:
                        part = features[:number], quality[:number]
                        rows = [*cases(*part, metric, ratio, given.lambdas, shards)]
                        cells = (f"{q:.2f} {d:.2f} |" for _, q, d, _ in rows)
                        where = f"| {name} | {metric} | {ratio:g} | {len(part[1]):,d} | {shards} |"
                        print(where, *cells, f"{rows[-1][-1]:.1f} s", flush=True)


if __name__ == "__main__":
    main()
