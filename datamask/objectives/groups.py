"""Balance of groups: the divergence of the selection's group shares from target shares.

KL(s ‖ t) = Σ s_g ln(s_g / t_g), where s_g is the fraction of the selection in group g and t_g its
target; to be minimised. It is a soft form of `selection.limits`. It is 0 at the targets; with equal
targets it is ln(number of groups) minus the entropy of the shares. It is convex in the inclusion
probabilities.

The objective reads a document's groups as named scores such as `dump=CC-MAIN-2024-10`, which are 1
for members of the group and 0 for other documents (`selection.terms`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from datamask.config.selection import LENGTH_BINS
from datamask.objectives.protocol import MomentObjective, Moments

OTHERS = "(others)"
"""Name of all groups without a target of their own, taken as one group."""
LEAST_SHARE = 1e-6
"""Minimum of a target, which keeps the divergence finite (docs/log.md#numbers)."""

Shares = Mapping[str, float] | Sequence[str]
"""Target shares by group, in [0, 1]; a list of groups means equal shares."""


class GroupBalance(MomentObjective):
    """KL divergence of the selection's group shares from target shares, in nats.

    Args:
        column: `dump`, `language`, `domain`, `topic`, or a name in `source.groups`.
        shares: target shares of named groups; all other groups together get the remainder.

    Raises:
        ValueError: no shares, or shares that are negative or exceed 1 in total.
    """

    maximise = False
    order: ClassVar[int] = 0
    bounded: ClassVar[bool] = True

    def __init__(self, column: str, shares: Shares = ()) -> None:
        if not shares:
            raise ValueError("shares must name at least one group")
        if isinstance(shares, Mapping):
            # Sorted as in run.json: every process must read sums by group in the same order.
            shares = dict(sorted(shares.items()))
        else:
            shares = dict.fromkeys(shares, 1 / len(shares))
        total = math.fsum(shares.values())
        if min(shares.values()) < 0 or total > 1 + 1e-9:
            raise ValueError(f"shares must be at least 0 and add up to at most 1, got {total:g}")
        self.column = column
        self.name = f"{column}_balance"
        self.shares = dict(shares) | {OTHERS: max(0.0, 1 - total)}

    @property
    def indicators(self) -> tuple[str, ...]:
        """Name the scores to read, one per named group."""
        return tuple(f"{self.column}={group}" for group in self.shares if group != OTHERS)

    def of_moments(self, moments: Moments) -> Tensor:
        """Return the KL divergence of the shares from the targets, in nats."""
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


BINS = tuple(str(number) for number in range(LENGTH_BINS))


class LengthBalance(GroupBalance):
    """Balance of length, against the bias of quality scores towards long documents.

    Args:
        shares: target shares of the bins `0` to `9`, tenths of the candidates by characters, the
            shortest first. Default: equal shares, the length distribution of the candidates.
    """

    def __init__(self, shares: Shares = BINS) -> None:
        super().__init__("length", shares)
        self.name = "length"
