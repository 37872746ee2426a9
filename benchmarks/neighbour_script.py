"""A script of polars that selects as a run does by default: half by score, then what covers it.

Vectors are those of our lexical embedder. In blocks of random documents, faiss (extra `bench`)
lists the nearest documents of each, and lazy greedy maximises quality and coverage on these lists.
It is given the weights of both, each divided by its scale. `benchmarks.overhead` calls it; it
imports nothing that it does not need.

    python -m benchmarks.neighbour_script SOURCE OUT --weights 1.2 30 --block 10000
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

NEIGHBOURS = 32
LIST, ROUNDS = 250, 5
"""Documents of an inverted list, and rounds of k-means that make the lists."""
KEPT, RATIO, WIDTH = 0.5, 0.1, 768


def graph(vectors: np.ndarray, searched: int) -> tuple[np.ndarray, np.ndarray]:
    """Return cosines and rows of the nearest documents, N x NEIGHBOURS."""
    import faiss

    faiss.omp_set_num_threads(1)
    width, lists = vectors.shape[1], len(vectors) // LIST
    index: Any = faiss.IndexFlatIP(width)
    if searched:
        index = faiss.IndexIVFFlat(index, width, lists, faiss.METRIC_INNER_PRODUCT)
        index.nprobe, index.cp.niter = searched, ROUNDS
        index.train(vectors[:: max(1, len(vectors) // (40 * lists))])
    index.add(vectors)
    cosines, rows = index.search(vectors, NEIGHBOURS)
    return cosines, rows


def greedy(cosines: np.ndarray, rows: np.ndarray, bonus: np.ndarray, count: int) -> np.ndarray:
    """Choose *count* rows by lazy greedy on the lists; *bonus* is what a row's quality adds."""
    from scipy import sparse

    from datamask.baselines.greedy import lazily

    number = len(cosines)
    listed = (rows >= 0).ravel()
    of = np.repeat(np.arange(number), NEIGHBOURS)[listed]
    lists = sparse.csc_array((cosines.ravel()[listed], (of, rows.ravel()[listed])))
    covered = np.where(rows >= 0, cosines, np.inf).min(1)

    def parts(row: int) -> tuple[np.ndarray, np.ndarray]:
        own = slice(lists.indptr[row], lists.indptr[row + 1])
        return lists.indices[own], lists.data[own]

    def gain(row: int) -> float:
        others, values = parts(row)
        return float(bonus[row] + np.maximum(values - covered[others], 0).sum() / number)

    def choose(row: int) -> None:
        others, values = parts(row)
        covered[others] = np.maximum(covered[others], values)

    return lazily(gain, choose, number, count)


def main() -> None:
    """Write the selected documents."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", help="folder of Parquet files with text and edu, a score")
    parser.add_argument("out", help="file of the selected rows")
    parser.add_argument("--weights", type=float, nargs=2, help="of quality and of coverage")
    parser.add_argument("--block", type=int, help="most documents that are compared")
    arguments = parser.parse_args()
    import polars as pl

    from datamask.embedding.lexical import Lexical

    documents = pl.read_parquet(f"{arguments.source}/*.parquet")
    count = round(RATIO * len(documents))
    documents = documents.unique("text", keep="first", maintain_order=True)
    documents = documents.with_columns(quality=pl.col("edu").rank() / pl.len())
    documents = documents.filter(pl.col("quality") > 1 - KEPT)
    vectors = Lexical().embed(documents["text"].to_list(), WIDTH)
    quality = documents["quality"].to_numpy()
    of_quality, of_coverage = arguments.weights
    chosen: list[np.ndarray] = []
    order = np.random.default_rng(0).permutation(len(documents))
    blocks = np.array_split(order, -(-len(order) // arguments.block))
    for number, block in enumerate(blocks, 1):
        wanted = count * number // len(blocks) - sum(rows.size for rows in chosen)
        bonus = of_quality / of_coverage * quality[block] / wanted
        chosen.append(block[greedy(*graph(vectors[block], 0), bonus, wanted)])
    documents[np.sort(np.concatenate(chosen))].write_parquet(arguments.out)


if __name__ == "__main__":
    main()
