"""What commands write to the terminal, in which control characters of names and texts are escapes.

Names of files, columns and groups are other people's. A terminal would obey escape sequences in
them, which can hide text, change the clipboard or the title, or make text look as if typed.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import textwrap
from collections.abc import Iterator
from typing import IO, Any

import click

from datamask.errors import visible


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
            columns(),
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    click.echo(text, err=to_stderr)


def columns() -> int:
    """Width of the terminal in characters."""
    return shutil.get_terminal_size().columns


def data_output() -> IO[str]:
    """Standard output for CSV and JSON: every character as it is, unless a terminal reads it."""
    stream: Any = sys.stdout
    is_file = isinstance(stream, Escaping) and not stream.isatty()
    whole: IO[str] = stream.whole if is_file else stream
    return whole
