"""Products of unit vectors for the comparators."""

from __future__ import annotations

import numpy as np
import torch


def cosines(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The cosines of unit rows with others, float32, rows x others.

    numpy's products round differently with each number of threads; torch's do not.
    """
    product: np.ndarray = (torch.from_numpy(rows) @ torch.from_numpy(others).T).numpy()
    return product
