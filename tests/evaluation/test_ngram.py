"""The n-gram model against interpolated Kneser-Ney smoothing from its definition."""

import math
from collections import Counter

import hypothesis
import numpy as np
from hypothesis import strategies as st

from datamask.evaluation.ngram import DISCOUNT, Trigrams

VOCABULARY = 5
TOKENS = st.integers(0, VOCABULARY - 1)


def kneser_ney(tokens, context, token):
    """Chen and Goodman 1999, with dictionaries: p(token | context of two, one or no tokens)."""
    grams = [tuple(tokens[i : i + 3]) for i in range(len(tokens) - 2)]
    pairs = {tuple(tokens[i : i + 2]) for i in range(len(tokens) - 1)}
    numbers = {
        2: Counter(grams),
        1: Counter(gram[1:] for gram in set(grams)),
        0: Counter(pair[1:] for pair in pairs),
    }[len(context)]
    lower = kneser_ney(tokens, context[1:], token) if context else 1 / VOCABULARY
    after = {gram: number for gram, number in numbers.items() if gram[:-1] == context}
    if not after:
        return lower
    known = max(after.get((*context, token), 0) - DISCOUNT, 0)
    return (known + DISCOUNT * len(after) * lower) / sum(after.values())


@hypothesis.settings(max_examples=150, deadline=None, derandomize=True)
@hypothesis.given(st.lists(TOKENS, min_size=3, max_size=60), st.lists(TOKENS, max_size=8))
def test_bits_are_those_of_the_definition(tokens, text):
    """Token by token, after contexts that are known and such that are not."""
    found = Trigrams(np.array(tokens), VOCABULARY).bits(np.array(text, np.int64), (4, 0))
    known = [4, 0, *text]
    expected = [
        -math.log2(kneser_ney(tokens, tuple(known[i : i + 2]), known[i + 2]))
        for i in range(len(text))
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_the_largest_tokens_do_not_run_into_each_other():
    """Three tokens of 21 bits are kept apart in a key of 63."""
    large = 2**21 - 1
    tokens = np.array([large, large, 0, large, 0, 0, large - 1, large, large])
    names = {token: place for place, token in enumerate(np.unique(tokens))}
    small = np.array([names[token] for token in tokens])
    found = Trigrams(tokens, 2**21).bits(tokens, (0, large))
    expected = Trigrams(small, 2**21).bits(small, (names[0], names[large]))
    np.testing.assert_allclose(found, expected, rtol=1e-12)
