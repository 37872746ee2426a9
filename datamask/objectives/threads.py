"""Threads that torch computes with, and products that round the same with any number of them.

Each calling thread has its own number of threads, by default one per core. Units of work that are
made at once would then start that many each, which wait for each other: two workers on two cores
took twice the CPU time.

Intel's library rounds products of two matrices equally (`MKL_CBWR` in `datamask/__init__`), and
divides the sums of a product with a vector between its threads. numpy's products do not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

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


def times_vector(matrix_MK: Tensor, vector_K: Tensor) -> Tensor:
    """Return the product, shape M, computed with a second column of zeros beside the vector."""
    return (matrix_MK @ torch.stack((vector_K, torch.zeros_like(vector_K)), 1))[:, 0]


def cosines(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the cosines of unit rows with others, float32, rows x others."""
    product: np.ndarray = (torch.from_numpy(rows) @ torch.from_numpy(others).T).numpy()
    return product
