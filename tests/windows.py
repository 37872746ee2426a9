"""The windows of a text as docs/scores.md describes them, worked out again by character."""

import math
from collections.abc import Callable

import numpy as np


def start_of_word(text: str, place: int, size: int) -> int:
    """Back to behind white space, if that is in the 64 characters or half a window before."""
    for behind in range(place, max(0, place - min(64, size // 2)), -1):
        if text[behind - 1].isspace():
            return behind
    return place


def by_hand(text: str, size: int, most: int) -> list[tuple[int, int]]:
    """Start and stop of each window."""
    if len(text) <= size:
        return [(0, len(text))]
    rest = len(text) - size
    others = min(most - 1, math.ceil(rest / size))
    found = [(0, size)]
    for number in range(1, others + 1):
        stop = size + math.floor(rest * number / others)
        start = stop - min(size, math.ceil(rest / others))
        end = stop if number == others else start_of_word(text, stop, size)
        found.append((start_of_word(text, start, size), end))
    return found


def nearest(spans: list[tuple[int, int]], length: int) -> np.ndarray:
    """The share of a text's characters that are nearest to each window."""
    if length == 0:
        return np.ones(1)
    middles = np.arange(length) + 0.5
    away = [np.maximum(np.maximum(start - middles, middles - stop), 0) for start, stop in spans]
    # Of windows that overlap, the one whose border is further away.
    inside = [np.minimum(middles - start, stop - middles) for start, stop in spans]
    order = np.stack([np.where(a > 0, a, -b) for a, b in zip(away, inside, strict=True)])
    return np.bincount(order.argmin(0), minlength=len(spans)) / length


def read(spans: list[tuple[int, int]], length: int) -> float:
    """The share of a text's characters that are in a window."""
    return len({place for span in spans for place in range(*span)}) / length if length else 1.0


def mean(text: str, size: int, most: int, judge: Callable[[str], np.ndarray]) -> np.ndarray:
    """The weighted mean of what each window gives."""
    spans = by_hand(text, size, most)
    values = [judge(text[start:stop]) for start, stop in spans]
    return np.tensordot(nearest(spans, len(text)), np.stack(values), 1)
