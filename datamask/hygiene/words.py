"""Splits texts into words and hashes word n-grams to 64 bits.

A text is normalised to NFKC and lower case; its words are the runs of letters, marks and digits. In
scripts written without spaces, each character is a word. Arrow splits the texts, so a million
documents take minutes on one core.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_UNSPACED = "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"
"""Thai, Lao, Burmese, Khmer, Japanese and Chinese."""

_SEPARATOR = r"[^[:ascii:]\pL\pM\pN]+"
"""Other characters than ASCII between words; those in ASCII are in `_ASCII`."""

_ASCII = np.arange(256, dtype=np.uint8)
"""Each byte of UTF-8: small letters for capital ones, and spaces for ASCII between words."""
_ASCII[:128] = [ord(chr(byte).lower()) if chr(byte).isalnum() else ord(" ") for byte in range(128)]
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_MIXER = np.uint64(0xBF58476D1CE4E5B9)


@dataclass(frozen=True, slots=True)
class Words:
    """The words of several texts, concatenated.

    Args:
        names: the distinct words.
        codes: index of each word in `names`; shape [words].
        offsets: the words of text i are codes[offsets[i] : offsets[i + 1]]; shape [texts + 1].
    """

    names: pa.Array
    codes: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]

    def text(self, first: int, number: int) -> str:
        """*number* words from index *first*, separated by spaces."""
        return " ".join(self.names.take(pa.array(self.codes[first : first + number])).to_pylist())


Hashes = tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]
"""Hashes of the n-grams of several texts, concatenated, with repetitions; and offsets: those of
text i are hashes[offsets[i] : offsets[i + 1]]."""


def split_words(texts: pa.Array) -> Words:
    """Split texts (large_string) into words; null has none."""
    plain = pc.fill_null(texts, "")
    is_other = pc.invert(pc.string_is_ascii(plain))
    other = pc.utf8_lower(pc.utf8_normalize(plain.filter(is_other), "NFKC"))
    other = pc.replace_substring_regex(other, f"({_UNSPACED})", r" \1 ")
    other = pc.replace_substring_regex(other, _SEPARATOR, " ")
    plain = pc.replace_with_mask(plain, is_other, other)
    # Bytes of ASCII are characters, and other characters have no such bytes. Arrow then splits at
    # spaces, several times as fast as at a regular expression.
    offsets = np.frombuffer(plain.buffers()[1], np.int64, len(plain) + 1, 8 * plain.offset)
    text = np.frombuffer(plain.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    spaced = pa.LargeStringArray.from_buffers(
        len(plain), pa.py_buffer(offsets - offsets[0]), pa.py_buffer(_ASCII[text])
    )
    lists = pc.ascii_split_whitespace(spaced)
    words = lists.flatten()
    is_word = pc.greater(pc.binary_length(words), 0)
    before = np.concatenate([[0], np.cumsum(is_word.to_numpy(zero_copy_only=False))])
    offsets = lists.offsets.to_numpy()
    encoded = words.filter(is_word).dictionary_encode()
    codes = encoded.indices.to_numpy().astype(np.int64)
    return Words(encoded.dictionary, codes, before[offsets - offsets[0]].astype(np.int64))


def hash_ngrams(words: Words, n: int) -> Hashes:
    """Hash all n-grams of words; a text of 1 to *n* − 1 words has one n-gram, of all its words.

    Two different n-grams collide with probability 2⁻⁶⁴.
    """
    lengths = np.diff(words.offsets)
    counts = np.maximum(lengths - n + 1, np.minimum(lengths, 1))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    firsts = np.arange(offsets[-1]) + np.repeat(words.offsets[:-1] - offsets[:-1], counts)
    of_name = [
        int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
        for name in words.names.to_pylist()
    ]
    # 0 stands for positions after the end of a text.
    of_word = np.array([*of_name, 0], np.uint64)[np.pad(words.codes, (0, n), constant_values=-1)]
    hashes = _combined(of_word[place : len(words.codes) + place] for place in range(n))[firsts]
    short = np.flatnonzero((lengths > 0) & (lengths < n))
    at, ends = words.offsets[short], words.offsets[short + 1]
    hashes[offsets[short]] = _combined(
        np.where(at + place < ends, of_word[at + place], np.uint64(0)) for place in range(n)
    )
    hashes = (hashes ^ (hashes >> np.uint64(31))) * _MIXER
    return hashes ^ (hashes >> np.uint64(29)), offsets


def _combined(hashes: Iterable[npt.NDArray[np.uint64]]) -> npt.NDArray[np.uint64]:
    return reduce(lambda total, one: total * _FACTOR + one, hashes)
