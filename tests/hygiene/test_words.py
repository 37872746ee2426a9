"""Words and n-grams against a plain loop over characters and tuples of words."""

import unicodedata
from itertools import chain

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from datamask.hygiene.words import Words, hash_ngrams, split_words

UNSPACED = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF))
UNSPACED += ((0x3400, 0x9FFF), (0xF900, 0xFAFF))


UNSEEN = "\u00ad\u200b\u200c\u200d\u2060\ufeff\ufe0f\U000e0101\u0640\u180e\u034f\u2063\u3164"
"""Characters that are not seen: soft hyphen, zero-width characters, variation selectors, ..."""


def words_of(text: str) -> list[str]:
    """The words of a text, character by character."""
    for _ in range(2):
        text = "".join(c for c in unicodedata.normalize("NFKC", text) if c not in UNSEEN + "\u1160")
    found, word = [], ""
    for character in unicodedata.normalize("NFKC", text.casefold()) + " ":
        alone = any(first <= ord(character) <= last for first, last in UNSPACED)
        inside = unicodedata.category(character)[0] in "LMN"
        if word and (alone or not inside):
            found.append(word)
            word = ""
        if inside:
            word += character
        if alone and word:
            found.append(word)
            word = ""
    return found


def written(words: Words) -> list[str]:
    """The words of all texts."""
    return list(words.names.take(pa.array(words.codes)).to_pylist())


def ngrams_of(words: list[str], n: int) -> list[tuple[str, ...]]:
    """All n-grams in order; of fewer words, one of all."""
    return [tuple(words[i : i + n]) for i in range(max(len(words) - n + 1, min(len(words), 1)))]


# Letters of several scripts, marks, digits, punctuation; all older than Unicode 10.
ALPHABET = "aAbBéÉe\u0301ßẞsSﬁÅ١٢42²_-'’.,;!? \n\t今日はไทยដက한국ДжΩσςΣ\u0390\u03aaΐبﹱ―" + UNSEEN
TEXTS = st.lists(st.none() | st.text(ALPHABET, max_size=60), max_size=8)


@settings(max_examples=100, deadline=None)
@given(texts=TEXTS, n=st.integers(1, 6))
def test_words_and_ngrams_are_those_of_a_plain_loop(texts, n):
    """Words are the same; n-grams have equal hashes exactly if their words are equal."""
    words = split_words(pa.array(texts, pa.large_string()))
    expected = [words_of(text or "") for text in texts]
    lengths = np.diff(words.offsets).tolist()
    assert lengths == [len(one) for one in expected]
    assert written(words) == list(chain.from_iterable(expected))
    values, offsets = hash_ngrams(words, n)
    each = [ngrams_of(one, n) for one in expected]
    ordered = list(chain.from_iterable(each))
    assert np.diff(offsets).tolist() == [len(one) for one in each]
    hashes: dict[tuple[str, ...], set[int]] = {}
    for ngram, value in zip(ordered, values.tolist(), strict=True):
        hashes.setdefault(ngram, set()).add(value)
    assert all(len(values) == 1 for values in hashes.values())
    assert len(set().union(*hashes.values())) == len(hashes)


def test_a_slice_of_an_array_has_the_words_of_its_texts():
    """Arrow's slices keep the offsets of the whole array."""
    texts = pa.array(["one two", "three", None, "four five six"], pa.large_string())
    words = split_words(texts.slice(1))
    assert np.diff(words.offsets).tolist() == [1, 0, 3]
    assert written(words) == ["three", "four", "five", "six"]


@settings(max_examples=80, deadline=None)
@given(text=st.text(ALPHABET, max_size=40), data=st.data())
def test_what_is_not_seen_changes_no_word(text, data):
    """Invisible characters anywhere and another case leave the words and so the hashes the same."""
    pieces = [data.draw(st.text(UNSEEN, max_size=2)) + character for character in text]
    for other in ("".join(pieces), text.swapcase().casefold(), text.upper()):
        pair = split_words(pa.array([text, other], pa.large_string()))
        assert written(pair) == words_of(text) * 2
