"""Rows on standard output: aligned for people, CSV or JSON lines for programs."""

from __future__ import annotations

import csv
import itertools
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

ALIGNED_ROWS = 1000
WIDEST = 60


def print_rows(names: Sequence[str], rows: Iterable[Sequence[Any]], form: str) -> None:
    """Print rows as they come.

    Args:
        names: of the columns.
        rows: values; consumed once, never all held but for the first thousand of a table.
        form: `table`, `csv` or `json` (one object a line).
    """
    if form == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(rows)
    elif form == "json":
        for row in rows:
            line = dict(zip(names, row, strict=True))
            print(json.dumps(line, default=str, ensure_ascii=False))
    else:
        _print_table(names, iter(rows))


def _print_table(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    remaining = iter(rows)
    first = [[_shown(value) for value in row] for row in itertools.islice(remaining, ALIGNED_ROWS)]
    widths = [
        max([len(name), *(len(row[place]) for row in first)]) for place, name in enumerate(names)
    ]
    print("  ".join(f"{name:{width}s}" for name, width in zip(names, widths, strict=True)).rstrip())
    for row in itertools.chain(first, ([_shown(value) for value in row] for row in remaining)):
        print("  ".join(f"{v:{width}s}" for v, width in zip(row, widths, strict=True)).rstrip())


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.6g}"
    # Text of documents may hold line breaks and control characters of terminals.
    text = "".join(c if c.isprintable() else " " for c in str(value))
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"
