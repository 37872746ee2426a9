"""Balance of groups: how far the selection's shares of groups are from target shares.

A soft form of `selection.limits`, part of the learning: KL(s ‖ t) = Σ s_g ln(s_g / t_g), s_g the
share of group g in the selection and t_g its target, to be minimised. 0 is the target itself; with
equal targets it is ln(number of groups) less the entropy of the shares. Convex in the inclusion
probabilities.

Which group a document is in reaches the objective as named scores, `dump=CC-MAIN-2024-10` and so
on, 1 for members and 0 for others (`selection.indicators`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from datamask.objectives.protocol import MomentObjective, Moments

OTHERS = "(others)"
"""The group of all documents whose own group is not named."""
LENGTH_BINS = 10
"""Groups of equally many candidates by length, the shortest first (docs/log.md#numbers)."""
LEAST_SHARE = 1e-6
"""A target of 0 counts as this, so that the divergence is finite (docs/log.md#numbers)."""


class GroupBalance(MomentObjective):
    """Divergence of the selection's groups from target shares.

    Args:
        column: `dump`, `language`, `domain` or `length` (bins of `LENGTH_BINS` quantiles of the
            candidates' characters, named `0` to `9`, the shortest first).
        shares: target share of each named group, in [0, 1]; what is left to 1 is the target of
            all others. A list of groups means equal shares. For `length` the default is equal
            shares: the length distribution of the source.

    Raises:
        ValueError: another column, or shares that are negative or add up to more than 1.
    """

    maximise = False
    order: ClassVar[int] = 0
    bounded: ClassVar[bool] = True

    def __init__(
        self, column: str, shares: Mapping[str, float] | Sequence[str] | None = None
    ) -> None:
        if column not in ("dump", "language", "domain", "length"):
            raise ValueError(f"column must be dump, language, domain or length, got {column}")
        if shares is None and column == "length":
            shares = [str(number) for number in range(LENGTH_BINS)]
        if not shares:
            raise ValueError("shares must name at least one group")
        if not isinstance(shares, Mapping):
            shares = dict.fromkeys(shares, 1 / len(shares))
        total = math.fsum(shares.values())
        if min(shares.values()) < 0 or total > 1 + 1e-9:
            raise ValueError(f"shares must be at least 0 and add up to at most 1, got {total:g}")
        self.column = column
        self.name = "length" if column == "length" else f"{column}_balance"
        self.shares = dict(shares) | {OTHERS: max(0.0, 1 - total)}

    @property
    def indicators(self) -> tuple[str, ...]:
        """Names of the scores it reads, one for each named group."""
        return tuple(f"{self.column}={group}" for group in self.shares if group != OTHERS)

    def of_moments(self, moments: Moments) -> Tensor:
        """KL divergence of the shares from the targets, in nats."""
        named = torch.stack([moments.scores[name] for name in self.indicators]) / moments.count
        shares = torch.cat([named, (1 - named.sum(0, keepdim=True)).clamp(min=0.0)])
        targets = torch.tensor(
            [max(target, LEAST_SHARE) for target in self.shares.values()],
            dtype=shares.dtype,
            device=shares.device,
        )
        ratio = shares.clamp(min=LEAST_SHARE) / targets
        divergence: Tensor = torch.special.xlogy(shares, ratio).sum()
        return divergence


class LengthBalance(GroupBalance):
    """`GroupBalance` of length: against the bias of quality scores towards long documents."""

    def __init__(self, shares: Mapping[str, float] | Sequence[str] | None = None) -> None:
        super().__init__("length", shares)
