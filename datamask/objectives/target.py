"""Coverage of a target: the distance between the mean embeddings of the selection and of a target.

‖Σ x / S − μ‖², where μ is the mean embedding of the target; to be minimised. It is the squared
maximum mean discrepancy with a linear kernel (Gretton et al. 2012, JMLR 13, eq. 5). It selects
towards a set of benchmarks or a domain, as importance resampling does with n-grams (DSIR, arXiv
2302.03169). It is convex in the inclusion probabilities.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from datamask.objectives.protocol import MomentObjective, Moments


class TargetCoverage(MomentObjective):
    """Squared distance between the mean embeddings of the selection and of a target.

    Args:
        path: .npy file of the target's embeddings, T x D, made with the run's encoder
            (`datamask embed TEXTS VECTORS` writes one); rows are scaled to length 1.

    Raises:
        ValueError: no path, or the file is not a matrix of finite numbers.
    """

    name = "target"
    maximise = False
    order: ClassVar[int] = 1
    bounded: ClassVar[bool] = True

    def __init__(self, path: str = "") -> None:
        if not path:
            raise ValueError("set `path` of the term to a .npy file of embeddings")
        rows = np.load(path, allow_pickle=False)
        if rows.ndim != 2 or not len(rows) or not np.isfinite(rows).all():
            raise ValueError(f"{path}: must be a matrix of finite numbers with a row per text")
        lengths = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
        self.mean_D = torch.from_numpy((rows / np.maximum(lengths, 1e-12)).mean(0))

    def of_moments(self, moments: Moments) -> Tensor:
        """Return ‖Σ x / S − μ‖²."""
        first = moments.first_D
        if first.shape[-1] != len(self.mean_D):
            raise ValueError(
                f"the target's vectors have {len(self.mean_D)} dimensions, the run's "
                f"{first.shape[-1]}; embed the target with the run's settings"
            )
        mean = first / moments.count.clamp(min=1.0)
        return (mean - self.mean_D.to(first)).square().sum()

    def self_curvature(self, moments: Moments) -> Callable[[Tensor], Tensor]:
        """See `curvature_of_distance`."""
        return curvature_of_distance(moments)


def curvature_of_distance(moments: Moments) -> Callable[[Tensor], Tensor]:
    """Return 2 ‖x‖² / S² of documents, exact, whatever the target."""
    factor = 2 / moments.count.square()
    return lambda features_BD: (factor * features_BD.square().sum(1)).to(torch.float32)
