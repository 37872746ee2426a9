"""The norms of embeddings, which must be 1. Importing this needs no torch."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

NORM_TOLERANCE = 0.01
"""Largest difference of the norm of a row from 1; float16 alone changes it by up to 0.0005
(docs/log.md#numbers)."""

NORM_ROWS = 1024
"""Number of rows whose norms are computed together (docs/log.md#memory)."""


def row_norms(matrix: np.ndarray, dtype: DTypeLike) -> np.ndarray:
    """Compute the norms of the rows of a matrix, N x D, in *dtype*; shape N."""
    norms = np.empty(len(matrix), dtype)
    for start in range(0, len(matrix), NORM_ROWS):
        rows = matrix[start : start + NORM_ROWS].astype(dtype)
        norms[start : start + NORM_ROWS] = np.sqrt(np.einsum("nd,nd->n", rows, rows))
    return norms
