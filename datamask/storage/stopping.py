"""Stop threads at their next checkpoint, after the user has interrupted the main thread.

Python delivers Ctrl-C to the main thread alone. Other threads ask here, at every checkpoint and
while they wait, and raise KeyboardInterrupt too.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

logger = logging.getLogger(__name__)

_asked = threading.Event()

last_checkpoint: ContextVar[list[float]] = ContextVar("last_checkpoint")
"""Monotonic seconds of the last checkpoint of this context's work; see `runs.stalls`. Threads with
copies of the context share the list."""


def is_asked() -> bool:
    """Return True if threads must stop."""
    return _asked.is_set()


def check() -> None:
    """Raise KeyboardInterrupt if threads must stop."""
    pause(0)


def pause(seconds: float) -> None:
    """Sleep, but raise KeyboardInterrupt as soon as threads must stop."""
    if _asked.wait(seconds):
        raise KeyboardInterrupt
    if (times := last_checkpoint.get(None)) is not None:
        times[0] = time.monotonic()


@contextlib.contextmanager
def asked() -> Iterator[None]:
    """Ask all threads to stop while the block runs."""
    _asked.set()
    try:
        yield
    finally:
        _asked.clear()


@contextlib.contextmanager
def stoppable_threads(number: int) -> Iterator[ThreadPoolExecutor]:
    """Yield a pool of *number* threads; an interruption stops them at their next checkpoint.

    A second interruption does not wait for them.
    """
    pool, wait = ThreadPoolExecutor(number), True
    try:
        yield pool
    except KeyboardInterrupt:
        wait = False  # A second interruption may come at any moment from here on.
        with asked():
            logger.warning("interrupted: stopping at the next checkpoint; Ctrl-C again stops now")
            pool.shutdown(cancel_futures=True)
        raise
    finally:
        pool.shutdown(wait=wait, cancel_futures=True)
