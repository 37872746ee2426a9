"""Embed texts that are not documents of a run: benchmarks, queries, a target of the selection."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pyarrow.dataset import dataset

from datamask.config.compute import Compute
from datamask.config.inputs import Embedding
from datamask.embedding.pinning import PIN, pin_model
from datamask.embedding.protocol import load_embedder, unit_vectors
from datamask.errors import InputError

TEXTS_AT_ONCE = 4096


def read_texts(path: Path, column: str, most: int | None = None) -> list[str]:
    """Texts of a column of Parquet (a file or folder), or the non-blank lines of another file.

    Args:
        path: file or folder.
        column: of Parquet.
        most: number of texts to read, spread over the files; None for all.

    Raises:
        InputError: no such file or column, no text, or not UTF-8.
    """
    try:
        if path.is_dir() or path.suffix == ".parquet":
            files = list(dataset(path, format="parquet").get_fragments())
            rows = None if most is None else -(-most // len(files))
            tables = [
                file.to_table([column]) if rows is None else file.head(rows, columns=[column])
                for file in files
            ]
            found = [text for table in tables for text in table[column].to_pylist()]
        else:
            found = path.read_text(encoding="utf-8").splitlines()
    except (OSError, KeyError, ValueError, ZeroDivisionError) as error:
        raise InputError(f"cannot be read ({error})", path=path, column=column) from None
    texts = [str(text) for text in found if text and str(text).strip()]
    if not texts:
        raise InputError("no texts in it", path=path, column=column)
    return texts[:most]


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
