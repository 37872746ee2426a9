"""Inputs of the benchmarks: semantic vectors, lexical vectors, and synthetic clusters.

They are created once and stored as .npy files, so that every case maps the same bytes into memory.
`semantic` is the beginning of the corpus of `benchmarks.debian_texts`, embedded by the pipeline;
it has all domains, in other shares than the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.scale import DIMENSION, clustered
from datamask.embedding.vectors import read_vectors
from datamask.runs.opening import open_run
from datamask.runs.run import Run

WIDTHS = {"semantic": 384, "text": DIMENSION, "debian": DIMENSION, "clustered": DIMENSION}
NOISE = 0.5
"""Length of the noise added to each further copy of a text's unit vector."""


def load(folder: Path, name: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors (float16, mapped, rows x width) and quality (float64), stored at the first call.

    Args:
        folder: of the files.
        name: `semantic`, `text`, `debian` or `clustered`.
        rows: number of documents.
    """
    features, quality = (folder / f"{name}-{rows}-{part}.npy" for part in ("features", "quality"))
    if not quality.exists():
        folder.mkdir(parents=True, exist_ok=True)
        makers: dict[str, Callable[[Path, int], tuple[np.ndarray, np.ndarray]]]
        makers = {"semantic": _semantic, "text": _text, "debian": _debian, "clustered": _clustered}
        made = makers[name](folder, rows)
        np.save(features, made[0])
        np.save(quality, made[1])
    return np.load(features, mmap_mode="r"), np.load(quality)


def semantic_documents(folder: Path, rows: int) -> pa.Table:
    """The documents of `semantic` with id, text, domain and dump, in the order of its vectors."""
    load(folder, "semantic", rows)
    corpus = pq.read_table(_semantic_run(folder).settings.source.path)
    return corpus.take(pc.index_in(_drawn(folder, rows), corpus["id"]))


def docstrings(folder: Path, rows: int, generator: np.random.Generator) -> pa.Table:
    """The docstrings of `text` with text, domain and dump; at most as many as there are."""
    from examples.demo_corpus import write_corpus

    if not (folder / "docstrings").exists():
        write_corpus(folder / "docstrings")
    corpus = pq.read_table(folder / "docstrings", columns=["text", "dump"])
    chosen = corpus.take(generator.permutation(len(corpus))[:rows])
    return chosen.append_column("domain", pa.repeat("docstrings", len(chosen)))


def best_other_texts(folder: Path, rows: int, count: int) -> list[str]:
    """The texts of highest quality in the corpus that are not among `semantic`."""
    run = _semantic_run(folder)
    scores = _quality(run).filter(pc.field("quality").is_valid())
    others = scores.filter(pc.invert(pc.is_in(scores["id"], _drawn(folder, rows))))
    best = others.sort_by([("quality", "descending"), ("id", "ascending")])["id"][:count]
    corpus = pq.read_table(run.settings.source.path)
    texts: list[str] = corpus["text"].take(pc.index_in(best, corpus["id"])).to_pylist()
    return texts


def _semantic_run(folder: Path) -> Run:
    if not (folder / "debian/run.json").exists():
        raise SystemExit(
            f"semantic: no run in {folder / 'debian'}; benchmarks/README.md says how to build the "
            "corpus and embed it"
        )
    return open_run(folder / "debian")


def _drawn(folder: Path, rows: int) -> pa.Array:
    return pa.array(np.load(folder / f"semantic-{rows}-ids.npy").tolist())


def _semantic(folder: Path, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The first documents of the run that embeds the corpus, which need not be complete."""
    run = _semantic_run(folder)
    parts, count = [], 0
    for shard in range(run.num_shards):
        path = run.path("embeddings", shard)
        if count < rows and path.exists():
            ids = pq.read_table(path, columns=["chunk_id"])["chunk_id"].to_pylist()
            parts.append((ids, read_vectors(path, run.settings.embedding.dimension)))
            count += len(ids)
    if count < rows:
        raise SystemExit(f"semantic: {count} documents are embedded, {rows} needed")
    ids, vectors = (np.concatenate(part)[:rows] for part in zip(*parts, strict=True))
    np.save(folder / f"semantic-{rows}-ids.npy", ids)
    scores = _quality(run)
    quality = scores["quality"].take(pc.index_in(pa.array(ids), scores["id"])).to_numpy()
    return vectors, quality


def _quality(run: Run) -> pa.Table:
    return pa.concat_tables(pq.read_table(run.path("quality", n)) for n in range(run.num_shards))


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


def _debian(folder: Path, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Texts of the corpus of `benchmarks.debian_texts` with the lexical embedder."""
    texts = pq.read_table(folder / "debian-corpus", columns=["text"])["text"]
    drawn = np.random.default_rng(0).permutation(len(texts))[:rows]
    vectors, quality = _lexical(texts.take(pa.array(drawn)).to_pylist())
    return vectors.astype(np.float16), quality


def _lexical(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    from datamask.embedding.lexical import Lexical
    from datamask.quality.heuristic import heuristic_scores

    parts = [Lexical().embed(texts[at : at + 1024], DIMENSION) for at in range(0, len(texts), 1024)]
    scores = heuristic_scores(texts)[0]
    return np.concatenate(parts), (scores - scores.mean()) / scores.std()


def _text(folder: Path, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Docstrings with the lexical embedder; additional rows are noisy copies."""
    generator = np.random.default_rng(0)
    whole, scores = _lexical(docstrings(folder, rows, generator)["text"].to_pylist())
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
