"""The value at a place of the order of a corpus, without sorting it.

Floats are mapped to whole numbers in the same order. These are counted by their first 16 bits;
those that share the first 16 bits of the value at the place, by the next 16; and so on. Each step
reads the values once (two for float32, four for float64), and memory does not grow with the corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np

from datamask.storage.duckdb_scratch import stream

DIGIT = 16
"""Bits that a step counts by, and so 512 KiB of counts (docs/log.md#threshold)."""

Count = Callable[[np.ndarray, np.ndarray | None], np.ndarray]
Reader = Callable[[Count], Iterable[np.ndarray]]
"""Calls a function with all values, batch by batch and in any threads, and yields its results.

A batch is an array of floats, and of how often each counts, less than 2⁵³ in all (None: once).
"""


def value_at(read: Reader, place: int, bits: int = 64) -> tuple[float, int]:
    """The value at a place of the ascending order, from 0, and its place among equal values.

    Args:
        read: called once per step.
        place: less than the number of values, each as often as it counts.
        bits: of a value, 32 or 64.
    """
    prefix = 0
    for rest in range(bits - DIGIT, -1, -DIGIT):
        counts = np.zeros(2**DIGIT, np.int64)
        for part in read(partial(_count, prefix, rest)):
            counts += part
        upto = counts.cumsum()
        digit = int(np.searchsorted(upto, place, "right"))
        place -= int(upto[digit] - counts[digit])
        prefix = prefix << DIGIT | digit
    top = 1 << (bits - 1)
    found = prefix ^ top if prefix & top else ~prefix & (2 * top - 1)
    return float(np.array(found, f"u{bits // 8}").view(f"f{bits // 8}")), place


def _count(prefix: int, rest: int, values: np.ndarray, often: np.ndarray | None) -> np.ndarray:
    """How often each digit follows *prefix* and is followed by *rest* bits."""
    keys = _in_order(values)
    if rest + DIGIT < 8 * values.itemsize:
        among = keys >> (rest + DIGIT) == prefix
        keys, often = keys[among], None if often is None else often[among]
    digits = keys >> rest & (2**DIGIT - 1)
    return np.bincount(digits.astype(np.int64), often, 2**DIGIT).astype(np.int64)


def _in_order(values: np.ndarray) -> np.ndarray:
    """Unsigned integers in the order of floats, in as many bits; -0.0 is 0.0."""
    unsigned = np.dtype(f"u{values.itemsize}")
    bits = (values + 0.0).astype(values.dtype, copy=False).view(unsigned)
    last = unsigned.type(8 * values.itemsize - 1)
    # The bits of negative numbers are all flipped, those of others in the sign only.
    keys: np.ndarray = bits ^ (np.negative(bits >> last) | unsigned.type(1) << last)
    return keys


def column_reader(connection: Any, query: str) -> Reader:
    """Read the only column of a query to DuckDB."""

    def read(count: Count) -> Iterable[np.ndarray]:
        for batch in stream(connection, query):
            yield count(batch.column(0).to_numpy(), None)

    return read


def deciles(counts: list[tuple[int, int]], parts: int) -> list[int]:
    """The values that divide documents into *parts* equal parts.

    The k-th is the least value that at least k / *parts* of the documents do not exceed.

    Args:
        counts: ascending values, and how often each occurs; at least one.
        parts: 10 for deciles.
    """
    upto = np.cumsum([number for _, number in counts])
    places = np.searchsorted(upto, [-(-part * upto[-1] // parts) for part in range(1, parts)])
    return [counts[place][0] for place in places]
