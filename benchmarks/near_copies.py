"""Near-copies of real texts by exact overlap, and how many of them similar vectors find.

Two texts are near-copies if the Jaccard similarity of their sets of word 5-grams, computed for all
pairs, is at least `OVERLAP`. The table compares pairs that vectors or MinHash signatures find.

    python -m benchmarks.near_copies [--rows 50000]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from scipy.sparse import csr_array

from benchmarks.inputs import load, semantic_documents
from datamask.hygiene.minhash import cluster, sign
from datamask.hygiene.words import Hashes, hash_ngrams, split_words

WORDS = 5
OVERLAP = 0.8
HALF = 0.5
COSINES = (0.99, 0.95, 0.9, 0.85, 0.8)
ROWS_AT_ONCE = 1000


def ngrams_of(texts: pa.ChunkedArray) -> Hashes:
    """The word 5-grams of texts."""
    return hash_ngrams(split_words(texts.cast(pa.large_string()).combine_chunks()), WORDS)


def overlapping(ngrams: Hashes, least: float) -> np.ndarray:
    """Pairs of texts (shape [pairs, 2], first < second) with a Jaccard similarity of *least*."""
    hashes, offsets = ngrams
    columns = np.unique(hashes, return_inverse=True)[1]
    matrix = csr_array((np.ones(len(columns), np.int32), columns, offsets), copy=True)
    matrix.sum_duplicates()
    matrix.data[:] = 1
    sizes = np.diff(matrix.indptr)
    other = matrix.T.tocsr()
    found = [np.zeros((0, 2), np.int64)]
    for start in range(0, matrix.shape[0], ROWS_AT_ONCE):
        shared = (matrix[start : start + ROWS_AT_ONCE] @ other).tocoo()
        left, right = shared.row + start, shared.col
        similar = shared.data >= least * (sizes[left] + sizes[right] - shared.data)
        similar &= left < right
        found.append(np.stack([left[similar], right[similar]], axis=1))
    return np.concatenate(found)


def similar_pairs(features: np.ndarray, least: float) -> tuple[np.ndarray, np.ndarray]:
    """Pairs with a cosine of *least* (shape [pairs, 2], first < second), and their cosines."""
    wide = np.asarray(features, np.float32)
    found, cosines = [np.zeros((0, 2), np.int64)], [np.zeros(0, np.float32)]
    for start in range(0, len(wide), ROWS_AT_ONCE):
        part = wide[start : start + ROWS_AT_ONCE] @ wide[start:].T
        left, right = np.nonzero(np.triu(part >= least, 1))
        found.append(np.stack([left, right], axis=1) + start)
        cosines.append(part[left, right])
    return np.concatenate(found), np.concatenate(cosines)


def kept_copies(pairs: np.ndarray, selected: np.ndarray) -> int:
    """Selected documents that nearly copy an earlier selected one."""
    both = pairs[selected[pairs].all(1)]
    return len(np.unique(both[:, 1]))


def _numbers(pairs: np.ndarray, rows: int) -> np.ndarray:
    numbers: np.ndarray = pairs[:, 0] * rows + pairs[:, 1]
    return numbers


def table(folder: Path, rows: int) -> str:
    """Recall and precision of each way to find near-copies, as Markdown."""
    features, _ = load(folder, "semantic", rows)
    start = time.perf_counter()
    ngrams = ngrams_of(semantic_documents(folder, rows)["text"])
    split = time.perf_counter() - start
    copies = overlapping(ngrams, OVERLAP)
    true = _numbers(copies, rows)
    exact = time.perf_counter() - start
    half = _numbers(overlapping(ngrams, HALF), rows)
    lines = [
        f"{rows} documents, {len(copies)} pairs of near-copies (exact, {exact:.0f} s), "
        f"{len(np.unique(copies[:, 1]))} documents nearly copy an earlier one",
        "",
        f"| found by | seconds | pairs | near-copies found | of the pairs, near-copies "
        f"| of the pairs, Jaccard ≥ {HALF} |",
        "|:--|--:|--:|--:|--:|--:|",
    ]
    start = time.perf_counter()
    pairs, cosines = similar_pairs(features, min(COSINES))
    seconds = time.perf_counter() - start
    for least in COSINES:
        found = _numbers(pairs[cosines >= least], rows)
        lines.append(_line(f"cosine ≥ {least}", seconds, found, true, half))
    start = time.perf_counter()
    labels = cluster(sign(ngrams), OVERLAP)
    seconds = split + time.perf_counter() - start
    together = labels[copies[:, 0]] == labels[copies[:, 1]]
    sizes = np.bincount(labels)
    lines.append(
        f"| MinHash clusters ({OVERLAP}) | {seconds:.0f} | {int((sizes * (sizes - 1) // 2).sum())} "
        f"| {together.mean():.1%} | – | – |"
    )
    return "\n".join(lines)


def _line(name: str, seconds: float, found: np.ndarray, true: np.ndarray, half: np.ndarray) -> str:
    both = len(np.intersect1d(found, true))
    return (
        f"| {name} | {seconds:.0f} | {len(found)} | {both / max(len(true), 1):.1%} | "
        f"{both / max(len(found), 1):.1%} | {np.isin(found, half).mean():.1%} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--folder", type=Path, default=Path("runs/bench"))
    arguments = parser.parse_args()
    print(table(arguments.folder, arguments.rows))


if __name__ == "__main__":
    main()
