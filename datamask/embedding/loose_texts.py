"""Embed texts from outside a run: benchmarks, queries, a target for the selection."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np

from datamask.config.compute import Compute
from datamask.config.inputs import Embedding
from datamask.embedding.pinning import PIN, pin_model
from datamask.embedding.protocol import load_embedder, unit_vectors
from datamask.errors import InputError
from datamask.source.opening import list_files
from datamask.source.rows import ROW_SUFFIXES, read_rows

TEXTS_AT_ONCE = 4096


def read_texts(path: str, column: str, most: int | None = None) -> list[str]:
    """Read the non-blank texts of Parquet, JSON lines or plain text files.

    Args:
        path: file, folder, glob or URL; a plain text file is one text.
        column: of Parquet and JSON lines.
        most: maximum number of texts, spread evenly over the files; None for all.

    Raises:
        InputError: the file or column is missing, or all texts are blank.
    """
    files = list_files(path, ROW_SUFFIXES)
    each = None if most is None else -(-most // len(files))
    rows = (row for file in files for row in islice(read_rows(file, (column,)), each))
    found = (str(row.get(column) or "") for row in rows)
    texts = [text for text in found if text.strip()][:most]
    if not texts:
        raise InputError("all texts are blank", path=path, column=column)
    return texts


def embed_texts(texts: Sequence[str], embedding: Embedding, compute: Compute) -> np.ndarray:
    """Embed texts with the encoder of the settings; unit rows, float32, N x `embedding.dimension`.

    Raises:
        SettingsError: the model cannot be loaded, or has another dimension.
        InputError: the vector of a text is not finite.
    """
    parts = [texts[at : at + TEXTS_AT_ONCE] for at in range(0, len(texts), TEXTS_AT_ONCE)]
    if not embedding.has_model:
        embedder = load_embedder(embedding.method)
        return np.concatenate([unit_vectors(embedder, p, embedding.dimension) for p in parts])
    from datamask.embedding import sentence_transformer

    encoder = sentence_transformer.load_model(embedding, pin_model(embedding)[PIN], compute)
    found = []
    for number, part in enumerate(parts):
        prepared = sentence_transformer.tokenise(encoder, part, embedding, compute.embedding_batch)
        names = [f"text {number * TEXTS_AT_ONCE + row}" for row in range(len(part))]
        found.append(sentence_transformer.embed(encoder, prepared, embedding, names))
    return np.concatenate(found)
