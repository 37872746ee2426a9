"""Values of a selection next to those of random documents and of top quality, as a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import isnan

COMPARED = ("ours", "random", "top quality")
"""Headings of the values of a comparison."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One value of the selection, of random and of top quality.

    Args:
        name: a term of the objective, `objective`, or `mean length`.
        selected: of the selected documents.
        random: expected for as many random candidates.
        top_quality: of as many documents with the highest quality.
        better: `higher`, `lower`, or empty if neither is better.
    """

    name: str
    selected: float
    random: float
    top_quality: float
    better: str


def comparison_rows(rows: Iterable[Comparison]) -> Iterator[tuple[str, ...]]:
    """The cells of a table of comparisons: name, a value of each of `COMPARED`, what is better."""
    for row in rows:
        values = (row.selected, row.random, row.top_quality)
        yield row.name, *("–" if isnan(v) else f"{v:.5g}" for v in values), row.better


def comparison_text(rows: Iterable[Comparison]) -> list[str]:
    """Comparisons as aligned lines, below a heading."""
    lines = []
    for name, *values, better in (("", *COMPARED, "better"), *comparison_rows(rows)):
        lines.append(f"{name:26s}{''.join(f'{v:>14s}' for v in values)}  {better}".rstrip())
    return lines
