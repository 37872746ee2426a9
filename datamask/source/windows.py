"""Cut windows from long texts, which scores and embedders read in place of the whole.

A reader holds only so much of a text at once. Of a longer text it reads the beginning and further
windows of the same size at equal distances, with three windows the middle and the end, so that no
part of a document decides alone. A text that one window holds is read as it is. The value of a
document is the mean over its windows, each weighted by the fraction of the text that it stands for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Scorer = Callable[[list[str | None]], tuple[np.ndarray, np.ndarray]]
"""Scores N texts: values, float64, and the fraction of each text that was read, float32."""

REACH = 64
"""Maximum characters by which a border between windows moves back to the start of a word."""


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """W windows of N texts: the beginnings of all texts, then the other windows, text by text.

    For each window, `owners` is the number of its text, `starts` the characters of the text before
    it, and `weights` the fraction of the text that is nearer to it than to others. `lengths` are
    the characters of the texts.
    """

    texts: list[str]
    owners: np.ndarray
    starts: np.ndarray
    weights: np.ndarray
    lengths: np.ndarray

    def mean(self, values: Any) -> Any:
        """Return the weighted mean over each text's windows: from W rows or numbers to N."""
        if len(self.texts) == len(self.lengths):
            return values
        from scipy import sparse

        shape = (len(self.lengths), len(self.texts))
        # Indices of 32 bits, which solvers of regressions need.
        rows_and_columns = self.owners.astype(np.int32), np.arange(len(self.texts), dtype=np.int32)
        return sparse.csr_array((self.weights, rows_and_columns), shape=shape) @ values

    def direction(self, unit: np.ndarray) -> np.ndarray:
        """Return the direction of each text's mean; unit rows, float32, W x D to N x D."""
        number = len(self.lengths)
        if len(unit) == number:
            return unit
        directions, is_cut = unit[:number].copy(), np.bincount(self.owners) > 1
        means = self.mean(unit)[is_cut]
        norms = np.linalg.norm(means, axis=1, keepdims=True)
        # Windows that cancel each other out leave the beginning.
        directions[is_cut] = np.where(
            norms > 0, means / np.maximum(norms, 1e-30), unit[:number][is_cut]
        )
        return directions

    def share_read(self, characters: np.ndarray | None = None) -> np.ndarray:
        """Return the fraction of each text that its windows hold; float32, shape N, in [0, 1].

        *characters*: how many of each window are read, from its start; None: all. NaN is unknown.
        """
        number = len(self.lengths)
        held = [len(text) for text in self.texts] if characters is None else characters
        stops = self.starts + np.asarray(held, np.float64)
        reached, read = stops[:number].copy(), stops[:number].copy()
        for window in range(number, len(self.texts)):
            owner, stop = self.owners[window], stops[window]
            read[owner] += max(0.0, stop - max(self.starts[window], reached[owner]))
            reached[owner] = max(stop, reached[owner])
        shares = np.divide(read, self.lengths, out=np.ones(number), where=self.lengths > 0)
        return np.asarray(shares, np.float32)


def cut(texts: Sequence[str], sizes: int | np.ndarray, most: int) -> Windows:
    """Cut at most *most* windows from each of N texts; a reader holds *sizes* characters."""
    lengths = np.array([len(text) for text in texts], np.int64)
    firsts = np.minimum(lengths, sizes).astype(np.int64)
    windows = [text[:stop] for text, stop in zip(texts, firsts.tolist(), strict=True)]
    weights = [1.0] * len(windows)
    owners, starts = [*range(len(windows))], [0] * len(windows)
    for owner in np.flatnonzero(lengths > firsts).tolist():
        text, size = texts[owner], int(firsts[owner])
        spans = [(0, size), *_later(text, size, most)]
        borders = [(stop + start) / 2 for (_, stop), (start, _) in itertools.pairwise(spans)]
        weights[owner], *others = np.diff([0, *borders, len(text)]) / len(text)
        weights += others
        for start, stop in spans[1:]:
            windows.append(text[start:stop])
            starts.append(start)
            owners.append(owner)
    return Windows(
        windows, np.array(owners, int), np.array(starts, int), np.array(weights), lengths
    )


def _later(text: str, size: int, most: int) -> list[tuple[int, int]]:
    """Return start and stop of the windows after the first: each ends an equal part of the rest."""
    rest = len(text) - size
    number = min(most - 1, -(-rest // size))
    spans = []
    for window in range(1, number + 1):
        stop = size + rest * window // number
        start = stop - min(size, -(-rest // number))
        # A window of several is wider than size / 2, so that none becomes empty.
        stop = stop if window == number else _start_of_word(text, stop, size // 2)
        spans.append((_start_of_word(text, start, size // 2), stop))
    return spans


def _start_of_word(text: str, position: int, reach: int) -> int:
    """Return the start of the word at a position; the position itself if that is too far."""
    before = text[max(0, position - min(reach, REACH)) : position]
    words = before.split()
    if not words or before[-1].isspace() or len(words[-1]) == len(before):
        return position
    return position - len(words[-1])
