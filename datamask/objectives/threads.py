"""Set how many threads torch computes with; each calling thread has its own number.

By default that is one per core. Units of work that are made at once would then start that many
each, which wait for each other: two workers on two cores took twice the CPU time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

threads_of_process = torch.get_num_threads()
"""Threads by OMP_NUM_THREADS or the cores: read before any thread has another number."""


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread what rounds differently with each number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def share_threads(at_once: int) -> None:
    """Give this thread its part of the process's threads, for *at_once* units at once."""
    torch.set_num_threads(max(1, threads_of_process // at_once))
