"""The progress of commands that run stages: one live display, or a line every 30 seconds in a pipe.

Both show the stages at work, their units, what is done within a unit, the rate and the time left,
from `datamask.runs.in_progress`. Lines of the log appear above the display.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from datamask.cli.terminal import Escaping
from datamask.execution.attempts import Progress
from datamask.runs.in_progress import Work, running

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LINES = 30.0


class Shown(NamedTuple):
    """A stage at work: its name, the share done in [0, 1] or None, and the rest in words."""

    stage: str
    share: float | None
    text: str


class Stages:
    """The stages at work, with the units that are done and the time since they were first seen.

    *log* takes a line about a finished stage.
    """

    def __init__(self, log: Callable[[str], None] = logger.info) -> None:
        self.log = log
        self.units: dict[str, tuple[int, int]] = {}
        self.started: dict[str, float] = {}

    def advance(self, stage: str, done: int, total: int) -> None:
        """See `datamask.execution.attempts.Progress`."""
        started = self.started.setdefault(stage, time.monotonic())
        self.units[stage] = (done, total)
        if done == total:
            self.log(f"{stage}: {done} of {total} done in {clock(time.monotonic() - started)}")

    def shown(self) -> list[Shown]:
        """What is at work now, by stage."""
        stages: dict[str, list[Work]] = {}
        for work in running():
            stages.setdefault(work.stage, []).append(work)
        return [self._shown(stage, works) for stage, works in stages.items()]

    def _shown(self, stage: str, works: list[Work]) -> Shown:
        now = time.monotonic()
        elapsed = now - self.started.setdefault(stage, min(work.started for work in works))
        done, total = self.units.get(stage, (0, 0))
        within = [work for work in works if work.total]
        parts = [f"{done} of {total} done"] if total > 1 else []
        if within:
            counts = sum(work.done for work in within), sum(work.total for work in within)
            parts.append(f"{counts[0]:,d} of {counts[1]:,d} {within[0].what}")
            rate = sum(work.done / max(now - work.started, 1e-3) for work in within)
            parts += [f"{rate:,.0f} per second"] * (rate >= 1)
        share = (done + sum(work.done / work.total for work in within)) / max(total, len(works))
        parts.append(clock(elapsed))
        if 0 < share < 1:
            parts.append(f"{clock(elapsed * (1 - share) / share)} left")
        return Shown(stage, share if share else None, ", ".join(parts))


def clock(seconds: float) -> str:
    """Seconds as 0:07 or 1:02:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


@contextlib.contextmanager
def shown_progress(seconds: float = SECONDS_BETWEEN_LINES) -> Iterator[Progress]:
    """Show progress on standard error while the block runs, unless only warnings are wanted.

    If standard error is not a terminal, *seconds* pass between lines.
    """
    stages = Stages()
    if logging.getLogger().getEffectiveLevel() > logging.INFO:
        yield stages.advance
        return
    show = _live(stages) if sys.stderr.isatty() else lines(stages, seconds, _to_stderr)
    # The display has the same numbers; the logs of the units get them all the same.
    handlers = logging.getLogger().handlers
    for handler in handlers:
        handler.addFilter(_is_no_progress)
    try:
        with show:
            yield stages.advance
    finally:
        for handler in handlers:
            handler.removeFilter(_is_no_progress)


def _is_no_progress(record: logging.LogRecord) -> bool:
    return record.name != "datamask.progress"


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def lines(stages: Stages, seconds: float, write: Callable[[str], None]) -> Iterator[None]:
    """Write a line for each stage at work every *seconds* while the block runs."""
    ended = threading.Event()

    def show() -> None:
        while not ended.wait(seconds):
            for shown in stages.shown():
                write(f"{shown.stage}: {shown.text}")

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def _live(stages: Stages) -> Iterator[None]:
    from rich.console import Console
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    def table() -> Any:
        grid = Table.grid(padding=(0, 1))
        for shown in stages.shown():
            total = None if shown.share is None else 1.0
            bar = ProgressBar(total, shown.share or 0, 20)
            grid.add_row(Text(shown.stage), bar, Text(shown.text))
        return grid

    terminal: Any = sys.stderr
    # The display itself needs escape sequences; handlers escape those of names.
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
