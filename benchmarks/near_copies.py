"""Near-copies of real texts by exact overlap, and how many of them similar vectors find.

Two texts are near-copies if the Jaccard similarity of their sets of word 5-grams, computed for all
pairs, is at least `OVERLAP`. The table compares pairs that vectors or MinHash signatures find.

    python -m benchmarks.near_copies [--rows 50000]

With `--texts`, a run drops near-copies of these texts, and a script of datasketch (extra `bench`)
does the same. One text in twenty is a copy that is planted: up to 5 % of its words, its beginning
and its end differ (`noisy_crawl.near_copy`). Both prefer the same, random texts, and exact overlap
judges both. Seconds are of CPU, the least of the repeats; the run's include planning and all files.

    python -m benchmarks.near_copies --texts runs/demo-corpus --rows 23000
    python -m benchmarks.near_copies --texts runs/many/texts --rows 100000  # benchmarks.many_texts
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.sparse import csr_array

from benchmarks.inputs import load, semantic_documents
from benchmarks.labelled_copies import dropped_by_run
from benchmarks.neighbour_graph import timed
from benchmarks.noisy_crawl import near_copy
from datamask.hygiene.minhash import cluster, sign
from datamask.hygiene.words import Hashes, hash_ngrams, split_words

WORDS = 5
OVERLAP = 0.8
HALF = 0.5
COSINES = (0.99, 0.95, 0.9, 0.85, 0.8)
ROWS_AT_ONCE = 1000
PLANTED = 20
"""One text in so many copies another one."""


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


def with_planted(folder: Path, rows: int) -> tuple[pa.Table, np.ndarray]:
    """Texts with ids and random scores, and the planted pairs: each original and its copy."""
    generator = np.random.default_rng(rows)
    texts = pq.read_table(folder, columns=["text"])["text"]
    number = rows // PLANTED
    own = generator.permutation(len(texts))[: rows - number]
    found = texts.take(pa.array(own)).to_pylist()
    words = sorted({word for text in found[:number] for word in text.split()})
    found += [near_copy(text, words, generator) for text in found[:number]]
    ids, scores = [str(row) for row in range(len(found))], generator.standard_normal(len(found))
    pairs = np.stack([np.arange(number), np.arange(len(own), len(found))], axis=1)
    return pa.table({"id": ids, "text": found, "score": scores}), pairs


def dropped_by_datasketch(table: pa.Table, is_compared: bool) -> np.ndarray:
    """Rows that resemble a better, kept one: as its index finds them by default, or by signatures.

    If *is_compared*, the index prefers recall, and the signatures of what it finds are compared.
    """
    from datasketch import MinHash, MinHashLSH

    def ngrams(text: str) -> set[bytes]:
        words = re.findall(r"[^\W_]+", text.lower())
        starts = range(max(1, len(words) - WORDS + 1))
        return {" ".join(words[start : start + WORDS]).encode() for start in starts}

    found = MinHash.bulk(map(ngrams, table["text"].to_pylist()), num_perm=128)
    weights = (0.1, 0.9) if is_compared else (0.5, 0.5)
    index, dropped = MinHashLSH(OVERLAP, num_perm=128, weights=weights), np.zeros(len(table), bool)
    for row in np.argsort(-table["score"].to_numpy(), kind="stable").tolist():
        others = index.query(found[row])
        if is_compared:
            others = [near for near in others if found[row].jaccard(found[near]) >= OVERLAP]
        dropped[row] = bool(others)
        if not others:
            index.insert(row, found[row])
    return dropped


def dropped_by_us(table: pa.Table) -> np.ndarray:
    """Rows that a run drops as copies or near-copies, with planning, reading and writing."""
    return np.isin(np.arange(len(table)), np.array(sorted(dropped_by_run(table, None)), int))


def beside_datasketch(folder: Path, rows: int, repeats: int) -> str:
    """What both drop, beside exact overlap, as Markdown."""
    table, planted = with_planted(folder, rows)
    ngrams = ngrams_of(table["text"])
    exact, half = overlapping(ngrams, OVERLAP), overlapping(ngrams, HALF)
    planted = planted[np.isin(_numbers(planted, rows), _numbers(exact, rows))]
    lines = [
        f"{rows:,} texts, {len(planted):,} planted pairs and {len(exact):,} in all are near-copies",
        "",
        "| dropped by | CPU s | documents | of planted pairs, one or both | of all pairs "
        f"| documents without a near-copy | without one of {HALF} |",
        "|:--|--:|--:|--:|--:|--:|--:|",
    ]
    ways: dict[str, Callable[[], np.ndarray]] = {
        "a run": lambda: dropped_by_us(table),
        "datasketch, by its index": lambda: dropped_by_datasketch(table, False),
        "datasketch, by signatures": lambda: dropped_by_datasketch(table, True),
    }
    for name, way in ways.items():
        taken, dropped = timed(way, repeats)
        shares = [dropped[pairs].any(1).mean() for pairs in (planted, exact)]
        wrong = [np.setdiff1d(np.flatnonzero(dropped), pairs).size for pairs in (exact, half)]
        cells = f"{dropped.sum():,} | {shares[0]:.1%} | {shares[1]:.1%} | {wrong[0]} | {wrong[1]}"
        lines.append(f"| {name} | {taken:.1f} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--folder", type=Path, default=Path("runs/bench"))
    parser.add_argument("--texts", type=Path, help="Parquet files with a column text")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.texts:
        print(beside_datasketch(arguments.texts, arguments.rows, arguments.repeats))
        return
    print(table(arguments.folder, arguments.rows))


if __name__ == "__main__":
    main()
