"""The next item is made while the one before it is in use.

A device that waits for its host is idle: reading and tokenising of a chunk of texts happen in a
thread while the model works on the chunk before. Order, items and errors are those of the plain
iteration.
"""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

Given = TypeVar("Given")
Made = TypeVar("Made")

AHEAD = 1
"""Items that wait to be used; one more is in the making."""


def read_ahead(items: Iterable[Given], make: Callable[[Given], Made]) -> Iterator[Made]:
    """Yield `make(item)` of every item, made ahead of their use in another thread.

    Whatever *items* or *make* raises is raised here, in its place in the order. The thread ends
    when this iterator is closed.
    """
    ready: queue.Queue[tuple[bool, Any]] = queue.Queue(AHEAD)
    over = threading.Event()

    def put(done: bool, value: Any) -> bool:
        while not over.is_set():
            try:
                ready.put((done, value), timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for item in items:
                if not put(False, make(item)):
                    return
            put(True, None)
        except BaseException as error:
            put(True, error)
        finally:
            # A generator closes its files where it ran.
            getattr(items, "close", lambda: None)()

    # What the work notes of itself is of the unit that this is for.
    here = contextvars.copy_context()
    thread = threading.Thread(target=here.run, args=(work,), name="read-ahead", daemon=True)
    thread.start()
    try:
        while True:
            done, value = ready.get()
            if not done:
                yield value
            elif value is None:
                return
            else:
                raise value
    finally:
        over.set()
        thread.join()
