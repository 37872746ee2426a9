"""Stopping threads at their next checkpoint, after the user has interrupted the main thread.

Python delivers Ctrl-C to the main thread alone. Other threads ask here, at every checkpoint and
while they wait, and raise KeyboardInterrupt too.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

logger = logging.getLogger(__name__)

_asked = threading.Event()


def is_asked() -> bool:
    """Whether threads are to stop."""
    return _asked.is_set()


def check() -> None:
    """Raise KeyboardInterrupt if threads are to stop."""
    pause(0)


def pause(seconds: float) -> None:
    """Sleep, or raise KeyboardInterrupt as soon as threads are to stop."""
    if _asked.wait(seconds):
        raise KeyboardInterrupt


@contextlib.contextmanager
def stoppable_threads(number: int) -> Iterator[ThreadPoolExecutor]:
    """A pool of *number* threads; an interruption stops them at their next checkpoint.

    A second interruption does not wait for them.
    """
    pool, wait = ThreadPoolExecutor(number), True
    try:
        yield pool
    except KeyboardInterrupt:
        wait = False  # A second interruption may come at any moment from here on.
        _asked.set()
        try:
            logger.warning("interrupted: stopping at the next checkpoint; Ctrl-C again stops now")
            pool.shutdown(cancel_futures=True)
        finally:
            _asked.clear()
        raise
    finally:
        pool.shutdown(wait=wait, cancel_futures=True)
