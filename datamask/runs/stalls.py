"""Give up a stuck unit of work with a transient error, so that it is attempted again.

A connection may stay silent for ever. Heartbeats do not show it, because they come from another
thread. So a unit works in a thread of its own and is given up if it neither reaches a checkpoint
nor computes. Its thread may stay blocked. Whatever that thread still writes is complete and has the
same bytes as the next attempt's.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextvars import copy_context

from datamask.errors import TransientError
from datamask.storage import stopping

COMPUTES = 0.02
"""Fraction of a core above which a process computes. A waiting process uses less."""
INTERRUPTED_SECONDS = 10.0
"""Seconds that an interrupted unit has to reach a checkpoint and clean up."""
EXIT_SECONDS = 60.0
"""Seconds that a process waits, after its main thread, for blocked threads of libraries."""
STUCK_STATUS = 75
"""Exit status of a process with blocked threads, the same as for transient errors."""
POLL_SECONDS = 5.0


class StalledError(TransientError):
    """A unit of work made no progress for `compute.stall_minutes`."""

    code = "stalled"


def unless_stuck(work: Callable[[], object], name: str, minutes: float | None) -> None:
    """Do *work* in another thread, in a copy of this context.

    Args:
        work: function that reaches checkpoints (`storage.stopping.pause`).
        name: of the unit, for the message.
        minutes: time without a checkpoint and without computing, after which the work is given up;
            None: never.

    Raises:
        StalledError: the work was given up.
        BaseException: what *work* raised.
    """
    if minutes is None:
        work()
        return
    ended, context, seconds = Future[None](), copy_context(), 60 * minutes
    checkpoint = [time.monotonic()]
    context.run(stopping.last_checkpoint.set, checkpoint)

    def run() -> None:
        try:
            work()
            ended.set_result(None)
        except BaseException as error:
            ended.set_exception(error)

    thread = threading.Thread(target=context.run, args=(run,), name=name, daemon=True)
    thread.start()
    moved, computed = checkpoint[0], time.process_time()
    try:
        while not wait([ended], min(POLL_SECONDS, seconds / 10)).done:
            now, cpu = time.monotonic(), time.process_time()
            if checkpoint[0] > moved or cpu - computed > COMPUTES * seconds:
                moved, computed = now, cpu
            elif now - moved > seconds:
                threading.Thread(target=_end_process, daemon=True).start()
                raise StalledError(
                    f"{name}: no progress for {minutes:g} minutes (compute.stall_minutes)"
                )
    except KeyboardInterrupt:
        with stopping.asked():
            thread.join(INTERRUPTED_SECONDS)
        raise
    ended.result()


def _end_process() -> None:
    """End the process after its main thread, although threads of libraries are blocked."""
    threading.main_thread().join()
    time.sleep(EXIT_SECONDS)
    os._exit(STUCK_STATUS)
