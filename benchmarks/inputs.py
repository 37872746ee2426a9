"""Inputs of the benchmarks: embedded docstrings, and synthetic clusters.

They are created once and stored as .npy files, so that every case maps the same bytes into memory.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks.scale import DIMENSION, clustered

NOISE = 0.5
"""Length of the noise added to each further copy of a text's unit vector."""


def load(folder: Path, name: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors (float16, mapped, rows x 768) and quality (float64), created at the first call.

    Args:
        folder: of the files.
        name: `text` or `clustered`.
        rows: number of documents.
    """
    features, quality = (folder / f"{name}-{rows}-{part}.npy" for part in ("features", "quality"))
    if not quality.exists():
        folder.mkdir(parents=True, exist_ok=True)
        makers: dict[str, Callable[[Path, int], tuple[np.ndarray, np.ndarray]]]
        makers = {"text": _text, "clustered": _clustered}
        made = makers[name](folder, rows)
        np.save(features, made[0])
        np.save(quality, made[1])
    return np.load(features, mmap_mode="r"), np.load(quality)


def _clustered(folder: Path, rows: int) -> tuple[np.ndarray, np.ndarray]:
    vectors = np.empty((rows, DIMENSION), np.float16)
    quality = np.empty(rows)
    start = 0
    for batch in clustered(rows):
        stop = start + batch.num_rows
        vectors[start:stop] = batch.column(2).flatten().to_numpy().reshape(-1, DIMENSION)
        quality[start:stop] = batch.column(1).to_numpy()
        start = stop
    return vectors, quality


def _text(folder: Path, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Docstrings with the lexical embedder; additional rows are noisy copies."""
    from datamask.cli.demo_corpus import write_corpus
    from datamask.embedding import lexical
    from datamask.quality.heuristic import score_texts

    corpus = folder / "docstrings"
    if not corpus.exists():
        write_corpus(corpus)
    texts = pq.read_table(corpus, columns=["text"])["text"].to_pylist()
    generator = np.random.default_rng(0)
    chosen = generator.permutation(len(texts))[: min(rows, len(texts))]
    texts = [texts[row] for row in chosen]
    parts = [lexical.embed(texts[at : at + 1024], DIMENSION) for at in range(0, len(texts), 1024)]
    whole = np.concatenate(parts)
    scores = np.asarray(score_texts(texts))
    scores = (scores - scores.mean()) / scores.std()
    vectors = np.empty((rows, DIMENSION), np.float16)
    quality = np.empty(rows)
    for start in range(0, rows, len(whole)):
        stop = min(start + len(whole), rows)
        part = whole[: stop - start]
        if start:
            noise = generator.standard_normal(part.shape, dtype=np.float32)
            part = part + NOISE / np.sqrt(DIMENSION) * noise
            part /= np.linalg.norm(part, axis=1, keepdims=True)
        vectors[start:stop] = part
        quality[start:stop] = scores[: stop - start] + (0.1 if start else 0) * (
            generator.standard_normal(stop - start)
        )
    return vectors, quality
