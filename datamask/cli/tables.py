"""Rows on standard output as an aligned table, CSV or JSON lines."""

from __future__ import annotations

import csv
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic_core import to_json

from datamask.cli.terminal import columns as terminal_columns
from datamask.cli.terminal import data_output
from datamask.errors import escaped

ALIGNED_ROWS = 1000
WIDEST = 60


def print_rows(names: Sequence[str], rows: Iterable[Iterable[Any]], form: str) -> None:
    """Print rows as they come, as `table`, `csv` or `json` (one object per line).

    A table keeps its first thousand rows for the column widths. In a terminal that is narrower
    than the table, each row is a paragraph with a line per column.
    """
    if form == "csv":
        writer = csv.writer(data_output(), lineterminator="\n")
        writer.writerow(names)
        writer.writerows(rows)
    elif form == "json":
        for row in rows:
            line = dict(zip(names, row, strict=True))
            # JSON has no infinite numbers: they become null.
            text = to_json(line, inf_nan_mode="null", bytes_mode="base64", fallback=str).decode()
            print(text, file=data_output())
    else:
        _print_table(names, iter(rows))


def _print_table(names: Sequence[str], rows: Iterator[Iterable[Any]]) -> None:
    """Columns of numbers are aligned right."""
    values = [list(row) for row in itertools.islice(rows, ALIGNED_ROWS)]
    first = [[_shown(value) for value in row] for row in values]
    names = list(map(escaped, names))
    columns = [[name, *column] for name, *column in zip(names, *first, strict=True)]
    widths = [max(map(len, column)) for column in columns]
    if sys.stdout.isatty() and sum(widths) + 2 * len(widths) - 2 > terminal_columns():
        for row in itertools.chain(first, (map(_shown, row) for row in rows)):
            for name, text in zip(names, row, strict=True):
                print(f"{name:{max(map(len, names))}}  {text}")
            print()
        return
    formats = [
        f"{{:{'>' if values and isinstance(values[0][number], int | float) else '<'}{width}}}"
        for number, width in enumerate(widths)
    ]
    line = "  ".join(formats).format
    print(line(*names).rstrip())
    for row in itertools.chain(first, (map(_shown, row) for row in rows)):
        print(line(*row).rstrip())


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,d}"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = escaped(value).replace("\t", "\\t")
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"
