"""Split texts into words and hash word n-grams to 64 bits.

Invisible characters are removed, and a text is normalised to NFKC and folded case (ß is ss, ς is
σ); its words are the runs of letters, marks and digits. In scripts written without spaces, each
character is a word. Only distinct words are normalised and hashed, because texts repeat them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from datamask.errors import RunError

_UNSPACED = "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"
"""Thai, Lao, Burmese, Khmer, Japanese and Chinese."""

_UNSEEN = (
    "[\u00ad\u034f\u0640\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Unicode's Default_Ignorable_Code_Point (soft hyphen, zero-width characters, variation selectors),
annotation marks, and tatweel, which only stretches an Arabic word."""

_SEPARATOR = r"[^\pL\pM\pN]+"

_ASCII = [ord(chr(byte).lower()) if chr(byte).isalnum() else ord(" ") for byte in range(128)]
_BYTES = bytes([*_ASCII, *range(128, 256)])
"""Maps each byte of UTF-8: small letters for capitals, and spaces for ASCII between words."""

_ALGORITHM = 2
"""Version of the hash functions in `rensa`. If you change it, raise the versions of the stages."""

FACTOR = np.uint64(0x9E3779B97F4A7C15)
_MIXER = np.uint64(0xBF58476D1CE4E5B9)


@dataclass(frozen=True, slots=True)
class Words:
    """The words of several texts, concatenated.

    Text i has the words names[codes[j]] for j from offsets[i] to offsets[i + 1] - 1.
    """

    names: pa.Array
    codes: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]


Hashes = tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]
"""Hashes of the n-grams of several texts, concatenated, with repetitions; and offsets: text i has
hashes[offsets[i] : offsets[i + 1]]."""


def split_words(texts: pa.Array) -> Words:
    """Split texts (large_string) into words; null has none."""
    texts = pc.fill_null(texts, "")
    ends = np.frombuffer(texts.buffers()[1], np.int64, len(texts) + 1, 8 * texts.offset)
    text = pa.py_buffer(texts.buffers()[2] or b"")[ends[0] : ends[-1]].to_pybytes()
    ends, text = ends - ends[0], text.translate(_BYTES)
    # Take each word with the spaces after it. Other characters have no bytes of ASCII, so only the
    # distinct words deal with them.
    is_inside = np.frombuffer(text, np.uint8) != ord(" ")
    is_start = np.zeros(len(text) + 1, bool)
    is_start[1:-1] = is_inside[1:] > is_inside[:-1]
    is_start[ends] = True
    starts = np.flatnonzero(is_start)
    spaced = pa.LargeStringArray.from_buffers(
        len(starts) - 1, pa.py_buffer(starts), pa.py_buffer(text)
    ).dictionary_encode()
    codes, lists = spaced.indices.to_numpy(), pc.ascii_split_whitespace(_plain(spaced.dictionary))
    names = lists.flatten()
    is_word = pc.not_equal(names, "")
    firsts = _sums(is_word.to_numpy(zero_copy_only=False))[lists.offsets.to_numpy()]
    counts = np.diff(firsts)[codes]
    before = _sums(counts)
    each = np.arange(before[-1]) + np.repeat(firsts[codes] - before[:-1], counts)
    return Words(names.filter(is_word), each, before[np.searchsorted(starts, ends)])


def _plain(words: pa.Array) -> pa.Array:
    """Return words in normal form, separated by spaces where they are more than one."""
    is_other = pc.invert(pc.string_is_ascii(words))
    other = pc.replace_substring_regex(words.filter(is_other), _UNSEEN, "")
    # Some presentation forms contain a tatweel.
    other = pc.replace_substring_regex(pc.utf8_normalize(other, "NFKC"), _UNSEEN, "")
    folded = "\n".join(other.to_pylist()).casefold().split("\n")[: len(other)]
    other = pc.utf8_normalize(pa.array(folded, words.type), "NFKC")
    other = pc.replace_substring_regex(other, f"({_UNSPACED})", r" \1 ")
    other = pc.replace_substring_regex(other, _SEPARATOR, " ")
    return pc.replace_with_mask(words, is_other, other)


def _sums(numbers: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the sums of all numbers before each one, and of all."""
    return np.concatenate([[0], np.cumsum(numbers)])


def hash_names(words: Words) -> npt.NDArray[np.uint64]:
    """Hash each distinct word. Errors are as in `hash_functions`."""
    (hashes,) = hash_functions().hash_token_sets([words.names.to_pylist()])
    return np.array(hashes, np.uint64)


def hash_ngrams(words: Words, n: int, names: npt.NDArray[np.uint64] | None = None) -> Hashes:
    """Hash all n-grams of words; a text of 1 to *n* − 1 words has one n-gram, of all its words.

    *names* are the hashes of the distinct words, if they are known (`hash_names`). Two different
    n-grams collide with probability 2⁻⁶⁴. Errors are as in `hash_functions`.
    """
    lengths = np.diff(words.offsets)
    counts = np.maximum(lengths - n + 1, np.minimum(lengths, 1))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    firsts = np.arange(offsets[-1]) + np.repeat(words.offsets[:-1] - offsets[:-1], counts)
    names = hash_names(words) if names is None else names
    # 0 stands for positions after the end of a text.
    of_word = np.append(names, np.uint64(0))[np.pad(words.codes, (0, n), constant_values=-1)]
    hashes = _combined(of_word[offset : len(words.codes) + offset] for offset in range(n))[firsts]
    short = np.flatnonzero((lengths > 0) & (lengths < n))
    at, ends = words.offsets[short], words.offsets[short + 1]
    hashes[offsets[short]] = _combined(
        np.where(at + offset < ends, of_word[at + offset], np.uint64(0)) for offset in range(n)
    )
    hashes = (hashes ^ (hashes >> np.uint64(31))) * _MIXER
    return hashes ^ (hashes >> np.uint64(29)), offsets


def hash_functions() -> Any:
    """Return the hash functions of `rensa`.

    Raises:
        RunError: the installed version has other ones.
    """
    from rensa import RMinHash

    if RMinHash.ALGORITHM_VERSION != _ALGORITHM:
        versions = f"version {RMinHash.ALGORITHM_VERSION}, but version {_ALGORITHM} is needed"
        raise RunError(f"rensa computes signatures of {versions}; install rensa 0.5")
    return RMinHash


def _combined(hashes: Iterable[npt.NDArray[np.uint64]]) -> npt.NDArray[np.uint64]:
    return reduce(lambda total, addend: total * FACTOR + addend, hashes)
