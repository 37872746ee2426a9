"""Write to the terminal: texts, and rows as an aligned table, CSV or JSON lines.

Control characters of names and texts are written as escapes. Names of files, columns and groups
come from other people. A terminal would obey escape sequences in them, which can hide text, change
the clipboard or the title, or make text look as if typed.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

import click

from datamask.errors import escaped
from datamask.showing import figure, visible

ALIGNED_ROWS = 1000
WIDEST = 60


class Escaping:
    """A stream of text that writes control characters as escapes to the stream *whole*."""

    def __init__(self, whole: Any) -> None:
        self.whole = whole

    def write(self, text: str) -> int:
        """Write a text with its control characters as escapes."""
        self.whole.write(visible(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole, name)


@contextlib.contextmanager
def escaped_output() -> Iterator[None]:
    """Escape whatever is written to standard output and standard error in the block."""
    out: Any = Escaping(sys.stdout)
    err: Any = Escaping(sys.stderr)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield


def print_text(text: str, *, to_stderr: bool = False) -> None:
    """Print a paragraph as one line; a terminal gets lines that end between words.

    Not for commands, which people copy.
    """
    if (sys.stderr if to_stderr else sys.stdout).isatty():
        text = textwrap.fill(
            text,
            shutil.get_terminal_size().columns,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    click.echo(text, err=to_stderr)


def data_output() -> IO[str]:
    """Return standard output for CSV and JSON; only for a terminal, characters are escaped."""
    stream: Any = sys.stdout
    is_file = isinstance(stream, Escaping) and not stream.isatty()
    whole: IO[str] = stream.whole if is_file else stream
    return whole


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
        from pydantic_core import to_json

        for row in rows:
            line = dict(zip(names, row, strict=True))
            # JSON has no infinite numbers: they become null.
            text = to_json(line, inf_nan_mode="null", bytes_mode="base64", fallback=str).decode()
            print(text, file=data_output())
    else:
        _print_table(names, iter(rows))


def _print_table(names: Sequence[str], rows: Iterator[Iterable[Any]]) -> None:
    """Print a table; columns of numbers are aligned right."""
    values = [list(row) for row in itertools.islice(rows, ALIGNED_ROWS)]
    first = [[_shown(value) for value in row] for row in values]
    names = list(map(escaped, names))
    cells = [[name, *column] for name, *column in zip(names, *first, strict=True)]
    widths = [max(map(len, column)) for column in cells]
    width = sum(widths) + 2 * len(widths) - 2
    if sys.stdout.isatty() and width > shutil.get_terminal_size().columns:
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
    if isinstance(value, int | float) and not isinstance(value, bool):
        return figure(value, 6)
    text = escaped(value).replace("\t", "\\t")
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"
