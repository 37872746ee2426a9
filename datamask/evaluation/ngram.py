"""Score held-out texts without training: bits per byte under an n-gram model of the arm's tokens.

Trigrams with interpolated Kneser-Ney smoothing (Chen and Goodman 1999, eq. 20 to 22) and one
discount; the remaining probability is uniform. The proxy is exact and deterministic. Every use also
reports how often it agreed with the verdicts of trained models.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

# Discount of the smoothing: docs/log.md#evaluation.
DISCOUNT = 0.75
MOST_TOKENS = 20_000_000
_BITS = 21
"""Maximum tokens of an arm that are counted, over all seeds: sorting their trigrams takes a
gigabyte. And bits of a token: a trigram has 63."""

Keys = npt.NDArray[np.uint64]


class Trigrams:
    """Counts of a sequence of tokens.

    Args:
        tokens: integers in [0, vocabulary).
        vocabulary: at most 2^21.
    """

    def __init__(self, tokens: npt.NDArray[np.int64], vocabulary: int) -> None:
        self.vocabulary = vocabulary
        first, second, third = (tokens[i : len(tokens) - 2 + i] for i in range(3))
        self.three = _Counts(_key(first, second, third), shift=_BITS)
        pairs = np.unique(_key(tokens[:-1], tokens[1:]))
        # Lower orders count in how many contexts something occurs, not how often.
        self.two = _Counts(_low(self.three.keys, 2), shift=_BITS)
        self.one = _Counts(_low(pairs, 1), shift=64)

    def bits(
        self, tokens: npt.NDArray[np.int64], context: tuple[int, int]
    ) -> npt.NDArray[np.float64]:
        """Return the bits of each token, given two tokens before the first."""
        known = np.concatenate([context, tokens])
        first, second, third = (known[i : len(known) - 2 + i] for i in range(3))
        chance = np.full(len(tokens), 1 / self.vocabulary)
        for counts, key in (
            (self.one, _key(third)),
            (self.two, _key(second, third)),
            (self.three, _key(first, second, third)),
        ):
            chance = counts.mixed(key, chance)
        return np.asarray(-np.log2(chance))


def bits_by_text(
    model: Trigrams, texts: Sequence[npt.NDArray[np.int64]], prefixes: Sequence[int]
) -> npt.NDArray[np.float64]:
    """Return the bits of each text after its prefix, whose tokens are not scored.

    *prefixes* are numbers of tokens. The last token of the vocabulary separates documents, and
    stands before each text.
    """
    separator = model.vocabulary - 1
    joined = np.concatenate([np.append([separator] * 2, text) for text in texts])
    bits = model.bits(joined, (separator, separator))
    ends = np.cumsum([len(text) + 2 for text in texts])
    scored = zip(ends - list(map(len, texts)) + prefixes, ends, strict=True)
    return np.array([bits[start:end].sum() for start, end in scored])


class _Counts:
    """Counts of each n-gram, and of each context: the n-gram without its last token."""

    def __init__(self, keys: Keys, shift: int) -> None:
        self.shift = shift
        self.keys, self.numbers = np.unique(keys, return_counts=True)
        self.contexts, first, self.kinds = np.unique(
            self._context(self.keys), return_index=True, return_counts=True
        )
        self.totals = np.add.reduceat(self.numbers, first)

    def _context(self, keys: Keys) -> Keys:
        # Shifting by all 64 bits is undefined: the unigrams' context is empty.
        return np.zeros_like(keys) if self.shift == 64 else keys >> np.uint64(self.shift)

    def mixed(self, keys: Keys, lower: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the chance of each n-gram's last token, given *lower*, the next lower order's."""
        number = _looked_up(self.keys, self.numbers, keys)
        contexts = self._context(keys)
        total = _looked_up(self.contexts, self.totals, contexts)
        kinds = _looked_up(self.contexts, self.kinds, contexts)
        mass = np.maximum(number - DISCOUNT, 0) + DISCOUNT * kinds * lower
        return np.where(total > 0, mass / np.maximum(total, 1), lower)


def _key(*tokens: npt.NDArray[np.int64]) -> Keys:
    key = np.zeros(len(tokens[0]), np.uint64)
    for column in tokens:
        key = (key << np.uint64(_BITS)) | column.astype(np.uint64)
    return key


def _low(keys: Keys, tokens: int) -> Keys:
    """Return the last tokens of n-grams."""
    return keys & np.uint64(2 ** (_BITS * tokens) - 1)


def _looked_up(keys: Keys, values: npt.NDArray[np.int64], wanted: Keys) -> npt.NDArray[np.float64]:
    positions = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[positions] == wanted, values[positions], 0).astype(np.float64)
