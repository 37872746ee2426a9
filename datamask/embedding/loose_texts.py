"""Embed texts from outside a run: benchmarks, queries, a target for the selection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from datamask.config.compute import Compute
from datamask.config.inputs import Embedding
from datamask.embedding.pinning import PIN, pin_model
from datamask.embedding.protocol import load_embedder, unit_vectors
from datamask.errors import InputError
from datamask.source.opening import list_files
from datamask.source.rows import ROW_SUFFIXES, read_rows

TEXTS_AT_ONCE = 4096


def read_texts(path: str, column: str) -> list[str]:
    """Read the non-blank texts of Parquet, JSON lines or plain text files.

    Args:
        path: file, folder, glob or URL; a plain text file is one text.
        column: of Parquet and JSON lines.

    Raises:
        InputError: the file or column is missing, or all texts are blank.
    """
    files = list_files(path, ROW_SUFFIXES)
    rows = (row for file in files for row in read_rows(file, (column,)))
    found = (str(row.get(column) or "") for row in rows)
    texts = [text for text in found if text.strip()]
    if not texts:
        raise InputError("all texts are blank", path=path, column=column)
    return texts


def embed_texts(texts: Sequence[str], embedding: Embedding, compute: Compute) -> np.ndarray:
    """Embed texts with the encoder of the settings; unit rows, float32, N x `embedding.dimension`.

    Raises:
        SettingsError: the model cannot be loaded, or has another dimension.
        InputError: there are no texts, or the vector of one is not finite.
    """
    if not texts:
        raise InputError("no texts")
    revision = pin_model(embedding)[PIN] if embedding.has_model else ""
    tokenise, encode = text_embedder(embedding, revision, compute)
    found = []
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        part = texts[start : start + TEXTS_AT_ONCE]
        names = [f"text {start + row}" for row in range(len(part))]
        found.append(encode(tokenise(part), names))
    return np.concatenate(found)


def text_embedder(
    embedding: Embedding, revision: str, compute: Compute
) -> tuple[Callable[[Sequence[str]], Any], Callable[[Any, Sequence[str]], np.ndarray]]:
    """What the host does with N texts ahead; and what makes of that, and of N names, unit vectors.

    *revision* is that of `sentence_transformer.load_model`.
    """
    if not embedding.has_model:
        embedder = load_embedder(embedding.method)
        return (
            lambda texts: texts,
            lambda texts, names: unit_vectors(embedder, texts, embedding.dimension),
        )
    from datamask.embedding import sentence_transformer as model

    encoder = model.load_model(embedding, revision, compute)
    return (
        lambda texts: model.tokenise(encoder, texts, embedding, compute.embedding_batch),
        lambda tokenised, names: model.embed(encoder, tokenised, embedding, names),
    )
