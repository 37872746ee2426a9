"""Embedder `lexical`: hashed n-grams of words and characters under a random projection.

Two texts are close if they share wording. Use it for the demo, for tests and to find
near-duplicates; it ignores meaning, so do not train on its selections. The vector of a text depends
on the text alone: no fitting, no batch effects, the same bytes in every process.

N-grams and their features are those of scikit-learn's HashingVectorizer: words and pairs of words,
and four characters of a word and the spaces around it. numpy hashes all n-grams of a few texts at
once, which takes half the time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from datamask.embedding.protocol import TextEmbedder

WORD_FEATURES, CHARACTER_FEATURES = 2**16, 2**15
NONZEROS = 8
PROJECTION_SEED = 768_2512
TEXTS_AT_ONCE = 64
WORD = re.compile(r"\b\w\w+\b")


class Lexical(TextEmbedder):
    """Embedder `lexical`."""

    version: ClassVar[str] = "lexical-1"
    most_characters: ClassVar[int | None] = 4000

    def embed(self, texts: Sequence[str], dimension: int) -> np.ndarray:
        """Embed N texts; unit rows, float32, N x *dimension*; texts without words are equal."""
        vectors = np.empty((len(texts), dimension), np.float32)
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            lower = [text.lower() for text in texts[start : start + TEXTS_AT_ONCE]]
            vectors[start : start + len(lower)] = _projected(lower, dimension)
        vectors[~vectors.any(axis=1)] = 1.0
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def _projected(texts: list[str], dimension: int) -> np.ndarray:
    """Project the logarithms of the counts of n-grams; float64, N x *dimension*."""
    from scipy import sparse

    features = zip(_words(texts), _characters(texts), strict=True)
    row, feature, sign = (np.concatenate(parts) for parts in features)
    shape = len(texts), WORD_FEATURES + CHARACTER_FEATURES
    counts = sparse.coo_array((sign, (row, feature)), shape).tocsr()
    values = np.sign(counts.data) * np.log1p(np.abs(counts.data))
    columns, weights = _projection(dimension)
    row = np.repeat(np.arange(len(texts)), np.diff(counts.indptr))[:, None]
    places = row * dimension + columns[counts.indices]
    parts = values[:, None] * weights[counts.indices]
    sums = np.bincount(places.ravel(), parts.ravel(), len(texts) * dimension)
    return sums.reshape(len(texts), dimension)


@lru_cache(maxsize=2)
def _projection(dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the columns that each feature touches, and its weights there; features x NONZEROS.

    A sparse projection with signs keeps inner products in expectation (Achlioptas 2003), and each
    feature touches only a few dimensions.
    """
    rows = WORD_FEATURES + CHARACTER_FEATURES
    generator = np.random.Generator(np.random.PCG64(PROJECTION_SEED))
    columns = generator.integers(0, dimension, (rows, NONZEROS))
    weights = generator.integers(0, 2, (rows, NONZEROS)) * 2 - 1
    # A column that is touched twice gets one product, so that sums round in one way.
    is_same = np.tril(columns[:, :, None] == columns[:, None])
    first = is_same.argmax(2)
    sums = np.einsum("rjk,rj->rk", first[:, :, None] == np.arange(NONZEROS), weights)
    return columns.astype(np.int32), sums.astype(np.int8)


def _words(texts: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the text, feature and sign of each word and pair of words."""
    words = [WORD.findall(text) for text in texts]
    data = np.frombuffer(
        f" {' '.join(word for some in words for word in some)} ".encode(), np.uint8
    )
    spaces = np.flatnonzero(data == ord(" "))
    row = np.repeat(np.arange(len(texts)), [len(some) for some in words])
    word, pair = np.arange(len(row)), np.flatnonzero(row[1:] == row[:-1])
    starts, stops = spaces[np.append(word, pair)] + 1, spaces[np.append(word + 1, pair + 2)]
    return np.append(row, row[pair]), *_features(data, starts, stops, WORD_FEATURES)


def _characters(texts: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the text, feature and sign of each four characters; three, if the word has one."""
    spaced = [f" {'  '.join(text.split())} " for text in texts]
    data = np.frombuffer("".join(spaced).encode(), np.uint8)
    # Bytes that continue a character begin with the bits 10.
    begins = np.append(np.flatnonzero(data & 0xC0 != 0x80), len(data))
    is_space = data[begins[:-1]] == ord(" ")
    ends = is_space[:-1] & is_space[1:]
    four = np.flatnonzero(~(ends[:-2] | ends[1:-1] | ends[2:]))
    three = np.flatnonzero(is_space[:-2] & ~is_space[1:-1] & is_space[2:])
    first, last = np.append(four, three), np.append(four + 4, three + 3)
    row = np.repeat(np.arange(len(texts)), [len(text) for text in spaced])[first]
    feature, sign = _features(data, begins[first], begins[last], CHARACTER_FEATURES)
    return row, WORD_FEATURES + feature, sign


def _features(
    data: np.ndarray, starts: np.ndarray, stops: np.ndarray, number: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return feature and sign of pieces of bytes, from MurmurHash3 (32 bits, seed 0)."""
    lengths = stops - starts
    padded = np.append(data, np.zeros(4, np.uint8)).astype(np.uint32)
    blocks: Any = sum(padded[byte : byte - 3 or None] << 8 * byte for byte in range(4))
    hashed: np.ndarray = np.zeros(len(starts), np.uint32)
    for block in range(lengths.max(initial=0) // 4):
        at = np.flatnonzero(lengths >= 4 * block + 4)
        mixed = hashed[at] ^ _mixed(blocks[starts[at] + 4 * block])
        hashed[at] = _rotated(mixed, 13) * 5 + np.uint32(0xE6546B64)
    rest = (lengths % 4).astype(np.uint32)
    hashed ^= _mixed(blocks[stops - rest] & ((np.uint32(1) << 8 * rest) - np.uint32(1)))
    hashed ^= lengths.astype(np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        hashed = (hashed ^ (hashed >> shift)) * np.uint32(factor)
    signed = hashed.astype(np.int32).astype(np.int64)
    return np.abs(signed) % number, np.where(signed < 0, -1.0, 1.0)


def _mixed(block: np.ndarray) -> np.ndarray:
    return _rotated(block * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)


def _rotated(values: np.ndarray, bits: int) -> np.ndarray:
    return (values << bits) | (values >> (32 - bits))
