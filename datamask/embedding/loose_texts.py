"""Embed texts from outside a run: benchmarks, queries, a target for the selection."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from datamask.config.compute import Compute
from datamask.config.inputs import OWN_VECTORS, WINDOWS, Embedding
from datamask.embedding.pinning import PIN, pin_model
from datamask.embedding.protocol import load_embedder, unit_vectors
from datamask.errors import InputError, SettingsError
from datamask.source.opening import PlannedFiles
from datamask.source.rows import ROW_SUFFIXES, read_rows
from datamask.source.windows import Windows, cut

TEXTS_AT_ONCE = 4096


def read_texts(path: str, column: str) -> list[str]:
    """Read the non-blank texts of a column of Parquet, JSON lines or plain text files.

    Raises:
        InputError: the file or column is missing, or all texts are blank.
    """
    files = PlannedFiles(path, ROW_SUFFIXES)
    rows = (row for name in files.names for row in read_rows(name, (column,), files))
    values = (str(row.get(column) or "") for row in rows)
    texts = [text for text in values if text.strip()]
    if not texts:
        raise InputError("all texts are blank; name a column of texts", path=path, column=column)
    return texts


def embed_texts(
    texts: Sequence[str], embedding: Embedding, compute: Compute, windows: int = WINDOWS
) -> np.ndarray:
    """Embed texts with the encoder of the settings; unit rows, float32, N x `embedding.dimension`.

    Raises:
        SettingsError: the model cannot be loaded, or has another dimension.
        InputError: there are no texts, or one has a vector that is not finite.
    """
    if not texts:
        raise InputError("no texts; give at least one")
    revision = pin_model(embedding)[PIN] if embedding.has_model else ""
    tokenise, encode = text_embedder(embedding, revision, compute, windows)
    vectors = []
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        part = texts[start : start + TEXTS_AT_ONCE]
        names = [f"text {start + row}" for row in range(len(part))]
        vectors.append(encode(tokenise(part), names))
    return np.concatenate(vectors)


def text_embedder(
    embedding: Embedding, revision: str, compute: Compute, windows: int
) -> tuple[Callable[[Sequence[str]], Any], Callable[[Any, Sequence[str]], np.ndarray]]:
    """Return two functions: one prepares N texts ahead; one makes unit vectors of that and N names.

    The prepared value has the fraction of each text that is read (`share_read`).

    Raises:
        SettingsError: the vectors of these settings are the user's own, or as in `embed_texts`.
    """
    if embedding.method in OWN_VECTORS:
        problem = "the vectors are your own, and no model makes those of other texts"
        raise SettingsError(f"embedding.method `{embedding.method}`: {problem}; name an embedder")
    if not embedding.has_model:
        embedder = load_embedder(embedding.method)
        most = embedder.most_characters or sys.maxsize

        def embed(cut_texts: Windows, names: Sequence[str]) -> np.ndarray:
            return cut_texts.direction(unit_vectors(embedder, cut_texts.texts, embedding.dimension))

        return lambda texts: cut(texts, most, windows), embed
    from datamask.embedding import sentence_transformer as model

    encoder = model.load_model(embedding, revision, compute)
    return (
        lambda texts: model.tokenise(encoder, texts, embedding, compute.embedding_batch, windows),
        lambda tokenised, names: model.embed(encoder, tokenised, embedding, names),
    )
