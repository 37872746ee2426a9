"""Prepare the next item in a thread while the present one is in use.

A device that waits for its host is idle, so a chunk of texts is read and tokenised while the model
works on the chunk before. Order, items and errors are those of the plain iteration.
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
"""Finished items in the queue; one more is being made."""


def read_ahead(items: Iterable[Given], make: Callable[[Given], Made]) -> Iterator[Made]:
    """Yield `make(item)` for every item, computed ahead in another thread.

    An exception of *items* or *make* is raised here, at its place in the order. The thread ends
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
            # A generator must be closed by the thread that ran it.
            getattr(items, "close", lambda: None)()

    # The thread adds to the record of the same unit of work.
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(work,), name="read-ahead", daemon=True)
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
