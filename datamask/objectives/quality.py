"""Quality: Q(U) = (1/S) Σ_{i in U} q_i, to be maximised.

Source: arXiv 2512.24265; the mean (rather than the sum) is this project's choice.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from datamask.objectives.protocol import MomentObjective, Moments


class Quality(MomentObjective):
    """Mean combined quality of the selected documents."""

    name = "quality"
    maximise = True
    order: ClassVar[int] = 0
    bounded: ClassVar[bool] = True
    linear: ClassVar[bool] = True

    def of_moments(self, moments: Moments) -> Tensor:
        """Return Σ q / S."""
        return moments.quality / moments.count
