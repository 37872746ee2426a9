"""Embedder `lexical`: hashed n-grams of words and characters under a random projection.

Two texts are close if they share wording. Use it for the demo, for tests and to find
near-duplicates; it ignores meaning, so do not train on its selections. The vector of a text depends
on the text alone: no fitting, no batch effects, the same bytes in every process.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from datamask.embedding.protocol import TextEmbedder

WORD_FEATURES, CHARACTER_FEATURES = 2**16, 2**15
NONZEROS = 8
PROJECTION_SEED = 768_2512


class Lexical(TextEmbedder):
    """Embedder `lexical`."""

    version: ClassVar[str] = "lexical-1"
    most_characters: ClassVar[int | None] = 4000

    def embed(self, texts: Sequence[str], dimension: int) -> np.ndarray:
        """Embed N texts; unit rows, float32, N x *dimension*; texts without words are equal."""
        from scipy import sparse

        words, characters, projection = _parts(dimension)
        counts = sparse.hstack([words.transform(texts), characters.transform(texts)], format="csr")
        counts.data = np.sign(counts.data) * np.log1p(np.abs(counts.data))
        vectors = np.asarray((counts @ projection).todense(), dtype=np.float32)
        vectors[~vectors.any(axis=1)] = 1.0
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


@lru_cache(maxsize=2)
def _parts(dimension: int) -> tuple[Any, Any, Any]:
    from scipy import sparse
    from sklearn.feature_extraction.text import HashingVectorizer

    words = HashingVectorizer(n_features=WORD_FEATURES, ngram_range=(1, 2), norm=None)
    characters = HashingVectorizer(
        n_features=CHARACTER_FEATURES, analyzer="char_wb", ngram_range=(4, 4), norm=None
    )
    # A sparse projection with signs keeps inner products in expectation (Achlioptas 2003), and
    # each feature touches only a few dimensions.
    rows = WORD_FEATURES + CHARACTER_FEATURES
    generator = np.random.Generator(np.random.PCG64(PROJECTION_SEED))
    columns = generator.integers(0, dimension, (rows, NONZEROS))
    signs = generator.integers(0, 2, (rows, NONZEROS)) * 2.0 - 1.0
    index = np.repeat(np.arange(rows), NONZEROS)
    projection = sparse.csr_matrix(
        (signs.reshape(-1), (index, columns.reshape(-1))), shape=(rows, dimension)
    )
    return words, characters, projection
