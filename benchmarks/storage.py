"""What smaller embeddings cost: bytes a document, and the objective valued on the full vectors.

    python -m benchmarks.storage RUN

RUN is a run with embeddings in float16. Selections are learned from the vectors as each way would
store them (int8, the first principal components, both), and valued on the vectors as they are.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from datamask.config.compute import Compute
from datamask.config.selection import Selection
from datamask.embedding.vectors import normalise
from datamask.learning.learner import judge, learn_mask, scale
from datamask.runs.opening import open_run
from datamask.selection.documents import read_survivors, with_vectors


def as_int8(features: np.ndarray) -> np.ndarray:
    """Rounded as `embedding.storage: int8` rounds, with unit length again."""
    step = np.abs(features).max(axis=1, keepdims=True) / 127
    return normalise((np.rint(features / step) * step).astype(np.float32))


def projected(features: np.ndarray, width: int) -> np.ndarray:
    """On the first principal components about the origin, with unit length again."""
    _, axes = np.linalg.eigh(features.T @ features)
    return normalise(np.ascontiguousarray(features @ axes[:, -width:]))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--ratio", type=float, default=0.1)
    arguments = parser.parse_args()
    run = open_run(arguments.run)
    shards = (read_survivors(run, shard) for shard in range(run.num_shards))
    parts = [with_vectors(run, documents) for documents in shards]
    features = np.concatenate([part.features for part in parts]).astype(np.float32)
    quality = np.concatenate([part.quality for part in parts])
    drawn = np.random.default_rng(0).permutation(len(quality))[: arguments.documents]
    features, quality = normalise(features[drawn]), quality[drawn]
    count, width = int(arguments.ratio * len(quality)), features.shape[1]
    ways = {"float16": (features, 2 * width), "int8": (as_int8(features), width + 4)}
    for part in (2, 4):
        ways[f"{width // part} components"] = (
            projected(features, width // part),
            2 * width // part,
        )
    print(f"{len(quality):,d} documents, {width} dimensions, {count:,d} selected")
    print("| metric | lambda | stored as | bytes | share of the gain | seconds |")
    print("|:--|--:|:--|--:|--:|--:|")
    for metric in ("disf", "facility_location", "pairwise"):
        for weight in (0.0, 0.1, 0.5):
            selection = Selection(metric=metric, quality_weight=weight)
            random = scale(
                features, quality, selection, count, seed=0, scores={}, compute=Compute()
            )
            best = None
            for name, (stored, size) in ways.items():
                start = time.process_time()
                learned = learn_mask(stored, quality, selection, count, seed=0)
                seconds = time.process_time() - start
                objective = judge(random, learned.selected)["objective"]
                gain = objective["selected"] - objective["random"]
                best = best or gain
                cells = (metric, f"{weight:g}", name, size, f"{gain / best:.1%}", f"{seconds:.1f}")
                print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
