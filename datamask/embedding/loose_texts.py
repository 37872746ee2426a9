"""Embed texts that are not documents of a run: benchmarks, queries, a target of the selection."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from datamask.config.compute import Compute
from datamask.config.inputs import Embedding
from datamask.embedding.pinning import PIN, pin_model
from datamask.embedding.protocol import load_embedder, unit_vectors
from datamask.errors import InputError

TEXTS_AT_ONCE = 4096


def read_texts(path: Path, column: str) -> list[str]:
    """Texts of a Parquet file's column, or the lines of any other file that are not blank.

    Raises:
        InputError: no such file or column, no text, or not UTF-8.
    """
    try:
        if path.suffix == ".parquet":
            found = pq.read_table(path, columns=[column])[column].to_pylist()
        else:
            found = path.read_text(encoding="utf-8").splitlines()
    except (OSError, KeyError, ValueError) as error:
        raise InputError(f"cannot be read ({error})", path=path, column=column) from None
    texts = [str(text) for text in found if text and str(text).strip()]
    if not texts:
        raise InputError("no texts in it", path=path, column=column)
    return texts


def embed_texts(texts: Sequence[str], embedding: Embedding, compute: Compute) -> np.ndarray:
    """Unit vectors of some texts by a run's encoder; float32, N x `embedding.dimension`.

    Raises:
        SettingsError: the model cannot be loaded, or has another dimension.
        InputError: a text has no finite vector.
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
