"""Products that round the same with any number of threads.

Intel's library keeps that promise for products of two matrices (`MKL_CBWR` in `datamask/__init__`),
and divides the sums of a product with a vector between its threads. numpy's products do not.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def times_vector(matrix_MK: Tensor, vector_K: Tensor) -> Tensor:
    """Return the product, shape M, computed with a second column of zeros beside the vector."""
    return (matrix_MK @ torch.stack((vector_K, torch.zeros_like(vector_K)), 1))[:, 0]


def cosines(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the cosines of unit rows with others, float32, rows x others."""
    product: np.ndarray = (torch.from_numpy(rows) @ torch.from_numpy(others).T).numpy()
    return product
