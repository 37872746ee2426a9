"""Show the progress of commands that run stages: a live display, or lines in a pipe.

Lines of the log appear above the display.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from collections.abc import Iterator
from typing import Any

from datamask.cli.terminal import Escaping
from datamask.execution.progress import Stages, lines

SECONDS_BETWEEN_LINES = 30.0

BAR = 8
"""Columns of a bar: the text next to it fits in a terminal of 80."""


@contextlib.contextmanager
def shown_progress(seconds: float = SECONDS_BETWEEN_LINES) -> Iterator[Stages]:
    """Show progress on standard error while the block runs, unless only warnings are wanted.

    If standard error is not a terminal, *seconds* pass between lines.
    """
    stages = Stages()
    if logging.getLogger().getEffectiveLevel() > logging.INFO:
        yield stages
        return
    write = functools.partial(print, file=sys.stderr, flush=True)
    show = _live(stages) if sys.stderr.isatty() else lines(stages, seconds, write)
    # The display has the same numbers; the logs of the units get them all the same.
    handlers = logging.getLogger().handlers
    for handler in handlers:
        handler.addFilter(_is_no_progress)
    try:
        with show:
            yield stages
    finally:
        for handler in handlers:
            handler.removeFilter(_is_no_progress)


def _is_no_progress(record: logging.LogRecord) -> bool:
    return record.name != "datamask.progress"


@contextlib.contextmanager
def _live(stages: Stages) -> Iterator[None]:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    def table() -> Any:
        grid, rows = Table.grid(padding=(0, 1)), stages.shown()
        for shown in rows:
            total = None if shown.share is None else 1.0
            bar = ProgressBar(total, shown.share or 0, BAR)
            grid.add_row(Text(shown.stage), bar, Text(shown.text))
        return Group(grid, Text(whole)) if (whole := stages.whole(rows)) else grid

    terminal: Any = sys.stderr
    # The display itself needs escape sequences; handlers escape sequences in names.
    console = Console(file=getattr(terminal, "whole", terminal))
    live = Live(get_renderable=table, console=console, refresh_per_second=4, transient=True)
    with live:
        # Handlers have the terminal itself; what they write must pass through the display.
        streams = [h for h in logging.getLogger().handlers if getattr(h, "stream", 0) is terminal]
        for handler in streams:
            handler.setStream(Escaping(sys.stderr))  # type: ignore[attr-defined]
        try:
            yield
        finally:
            for handler in streams:
                handler.setStream(terminal)  # type: ignore[attr-defined]
