"""`datamask.MaskSelector`: selection of documents in the shape of a scikit-learn estimator."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import _safe_indexing

from datamask.in_memory.select import select


class MaskSelector(BaseEstimator):  # type: ignore[misc]
    """Select rows, not columns: `fit(X, y)` reads embeddings or texts, and quality as *y*.

    Parameters are those of `datamask.select`; after `fit`, `selected_` is what it returns.
    """

    def __init__(
        self,
        ratio: float = 0.1,
        num_selected: int | None = None,
        quality_weight: float | None = None,
        metric: str | None = None,
        seed: int = 0,
    ) -> None:
        self.ratio, self.num_selected, self.quality_weight = ratio, num_selected, quality_weight
        self.metric, self.seed = metric, seed

    def fit(self, X: Any, y: Any = None) -> MaskSelector:
        """Select rows of *X*. Raises as `datamask.select`."""
        self.selected_ = select(X, y, **self.get_params())
        return self

    def get_support(self, indices: bool = False) -> np.ndarray:
        """The mask of the rows, bool; or their indices, int64."""
        return self.selected_.indices if indices else self.selected_.mask

    def transform(self, X: Any) -> Any:
        """The selected rows of the *X* that was fitted, in its container."""
        return _safe_indexing(X, self.selected_.indices)
