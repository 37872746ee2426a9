"""Prepare the next item in a thread while the present one is in use.

A device that waits for its host is idle, so a chunk of texts is read and tokenised while the model
works on the chunk before. Order, items and errors are those of the plain iteration.
"""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Given = TypeVar("Given")
Made = TypeVar("Made")

AHEAD = 2
"""Items that are finished or being made."""


def read_ahead(items: Iterable[Given], make: Callable[[Given], Made]) -> Iterator[Made]:
    """Yield `make(item)` for every item, computed ahead in another thread.

    An exception of *items* or *make* is raised here, at its place in the order. The thread ends
    when this iterator is closed.
    """
    made = map(make, items)
    # The thread adds to the record of the same unit of work.
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1, "read-ahead") as thread:

        def next_one() -> list[Made]:
            """The next item, alone; nothing at the end."""
            return list(islice(made, 1))

        waiting = deque(thread.submit(context.run, next_one) for _ in range(AHEAD))
        try:
            while found := waiting.popleft().result():
                waiting.append(thread.submit(context.run, next_one))
                yield found[0]
        finally:
            for one in waiting:
                one.cancel()
            # A generator must be closed by the thread that ran it.
            thread.submit(getattr(items, "close", lambda: None))
