"""Report units of work in progress in this process, and how far each has come.

Stages report with `advance`; displays read `running`. Every ten seconds a line also goes to the log
of the unit, through the logger `datamask.progress`, which displays can leave out.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

from datamask.storage import stopping

Item = TypeVar("Item")
Result = TypeVar("Result")

logger = logging.getLogger("datamask.progress")

SECONDS_BETWEEN_LINES = 10


@dataclass(slots=True)
class Work:
    """A unit of work in progress.

    Args:
        stage: its stage, with the round if there are several.
        label: the unit in messages; empty if the stage has one unit.
        started: monotonic seconds.
        done: how much of `total` is done, in the unit `what`.
        is_bound: True if `total` is a limit that is seldom reached, so that no remaining time
            can be computed from it.
        metrics: values that the stage has noted (see `note`).
    """

    stage: str
    label: str
    started: float
    done: int = 0
    total: int = 0
    what: str = ""
    is_bound: bool = False
    logged: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)


_current: ContextVar[Work | None] = ContextVar("work", default=None)
_running: dict[int, Work] = {}


@contextlib.contextmanager
def working(stage: str, label: str = "") -> Iterator[Work]:
    """Register a unit of work of this thread while the block runs."""
    now = time.monotonic()
    work = Work(stage, label, now, logged=now)
    _running[id(work)] = work
    token = _current.set(work)
    try:
        yield work
    finally:
        _current.reset(token)
        del _running[id(work)]


def running() -> list[Work]:
    """List the units in progress, in the order of their start."""
    return list(_running.values())


def advance(
    done: int, total: int, what: str = "documents", detail: str = "", *, is_bound: bool = False
) -> None:
    """Report the progress of this thread's unit of work; does nothing if the thread has no unit.

    With *is_bound*, *total* is a limit that is seldom reached.

    Raises:
        KeyboardInterrupt: the user has interrupted the work.
    """
    stopping.check()
    work, now = _current.get(), time.monotonic()
    if work is None:
        return
    work.done, work.total, work.what, work.is_bound = done, total, what, is_bound
    if now - work.logged >= SECONDS_BETWEEN_LINES:
        work.logged = now
        unit = f"{work.stage}: {work.label}".rstrip(": ")
        logger.info("%s: %d of %d %s%s", unit, done, total, what, detail)


def note(**metrics: float) -> None:
    """Add metrics to the record of this thread's unit of work, if the thread has one.

    Use it for values that depend on the clock or the machine; others belong in the receipt. A
    thread that works for a unit must run in a copy of its context (`contextvars.copy_context`).
    """
    work = _current.get()
    if work is not None:
        for name, value in metrics.items():
            work.metrics[name] = round(work.metrics.get(name, 0) + value, 3)


def each_in_turn(
    work: Callable[[Item], Result], items: Sequence[Item], threads: int, what: str
) -> Iterator[Result]:
    """Yield the result of *work* for each item, in the order of the items, with progress.

    *threads* other threads call *work*; an error is raised when its item has its turn. At most
    *threads* + 1 results are held in memory.
    """
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for number, item in enumerate(items):
            waiting.append(pool.submit(work, item))
            if len(waiting) > threads:
                yield waiting.popleft().result()
                advance(number + 1 - threads, len(items), what)
        while waiting:
            yield waiting.popleft().result()
            advance(len(items) - len(waiting), len(items), what)
