"""Pairwise similarity: (‖Σ x‖² − S) / (S (S − 1)), to be minimised.

For unit vectors this is the mean cosine of two different selected documents. Source: arXiv
2512.24265; the normalisation is this project's choice. One document has no pair: the value is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from datamask.objectives.protocol import MomentObjective, Moments


class PairwiseSimilarity(MomentObjective):
    """Mean off-diagonal cosine of the selected documents."""

    name = "pairwise"
    maximise = False
    order: ClassVar[int] = 1
    bounded: ClassVar[bool] = True

    def of_moments(self, moments: Moments) -> Tensor:
        """Return (‖Σ x‖² − S) / (S (S − 1)); 0 for fewer than two documents."""
        count = moments.count
        pairs = (count * (count - 1)).clamp(min=1.0)
        return (moments.first_D.square().sum() - count) / pairs * (count > 1)

    def self_curvature(self, moments: Moments) -> Callable[[Tensor], Tensor]:
        """Return 2 ‖x‖² / (S (S − 1)), exact."""
        pairs = (moments.count * (moments.count - 1)).clamp(min=1.0)
        factor = 2 * (moments.count > 1) / pairs
        return lambda features_BD: (factor * features_BD.square().sum(1)).to(torch.float32)
