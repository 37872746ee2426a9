"""The interface of an objective: a name, a direction, and the value of many masks at once.

The learner knows nothing about any term beyond this file. `Objective` needs only values, which is
all that the policy gradient asks for. `MomentObjective` is a function of sums over the selected
documents; its values follow from that one function, and by autograd the gradient of its
expectation. Shape suffixes: G masks, B documents of a batch, D dimensions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from datamask.objectives.products import times_vector

CACHED_ROWS = 1024
"""Documents per block in sums over the entries of embeddings, so that intermediate results stay in
the processor's cache (docs/log.md#memory)."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Documents for which masks are evaluated.

    Args:
        features_BD: unit vectors, float32.
        quality_B: combined quality as it is learned (`objectives.level`), so that a
            large mean takes no precision; give absolute values as a score.
        scores: named per-document scores, each of shape B.
        working_set_bytes: how much memory one evaluation may use; masks are cut into groups to
            respect it.
    """

    features_BD: Tensor
    quality_B: Tensor
    scores: Mapping[str, Tensor] = field(default_factory=dict)
    working_set_bytes: int = 2**28


@runtime_checkable
class Objective(Protocol):
    """One term. `values` computes its raw value; `maximise` says which direction is better."""

    name: str
    maximise: bool

    def values(self, masks_GB: Tensor, batch: Batch) -> Tensor:
        """Evaluate masks (bool, the same number of ones in each row); returns shape G."""
        ...


@dataclass(frozen=True, slots=True)
class Moments:
    """Sums over the selected documents.

    Args:
        count: number of selected documents (constant under differentiation).
        quality: sum of the combined quality, each minus the median (see `Batch`).
        scores: sums of the named scores.
        first_D: sum of x.
        second_DD: sum of x xᵀ; zeros of shape 0 x 0 for objectives of a lower order. If there are
            fewer documents than dimensions, a weight of each document (`MomentObjective.of_few`).
    """

    count: Tensor
    quality: Tensor
    scores: Mapping[str, Tensor]
    first_D: Tensor
    second_DD: Tensor

    @property
    def order(self) -> int:
        """2 with Σ x xᵀ, 1 with Σ x alone, else 0."""
        return 2 if len(self.second_DD) else 1 if len(self.first_D) else 0

    def mapped(self, function: Callable[..., Tensor], *others: Moments) -> Moments:
        """Apply a function to each sum and to the same sums of others: counts, qualities etc."""
        every = (self, *others)
        return Moments(
            function(*(each.count for each in every)),
            function(*(each.quality for each in every)),
            {name: function(*(each.scores[name] for each in every)) for name in self.scores},
            function(*(each.first_D for each in every)),
            function(*(each.second_DD for each in every)),
        )

    def scaled(self, count: float) -> Moments:
        """Return moments of *count* documents in the same proportions."""
        share = count / float(self.count)
        return self.mapped(lambda total: share * total)

    def mixed(self, other: Moments, share: float) -> Moments:
        """Return (1 − share) · these + share · others; moments are linear in p."""
        return self.mapped(lambda a, b: (1 - share) * a + share * b, other)

    def to(self, device: torch.device | str) -> Moments:
        """Copy the moments to a device."""
        return self.mapped(lambda total: total.to(device))


class MomentObjective(ABC):
    """A differentiable function of `Moments`; a subclass writes only `of_moments`.

    `order` is the highest moment it reads: 0 sums of quality and scores, 1 also the sum of x, 2
    also the sum of x xᵀ. `bounded` promises that, for 0 <= p <= 1, the value in its good direction
    is concave, which lets the learner certify how far from optimal a mask is. `linear` promises
    that the value is linear in the sums at a fixed count, so that scope `corpus` needs a single
    round.
    """

    name: str
    maximise: bool
    order: ClassVar[int] = 2
    bounded: ClassVar[bool] = False
    linear: ClassVar[bool] = False

    def of_few(self, features_ND: Tensor) -> MomentObjective | None:
        """Return this function for N < D documents, whose `second_DD` is a weight of each document.

        None: no form avoids Σ x xᵀ.
        """
        return None

    @abstractmethod
    def of_moments(self, moments: Moments) -> Tensor:
        """Return the term's raw value, a scalar; use only torch operations, for autograd."""

    def self_curvature(self, moments: Moments) -> Callable[[Tensor], Tensor] | None:
        """Second derivative of the value along a document's own contribution.

        Returns a function of documents, float32, B x D, with a result of shape B. It keeps a
        document from counting as a pair with itself. Optional: without it, the pair counts, which
        matters by 1/S.
        """
        return None

    def values(self, masks_GB: Tensor, batch: Batch) -> Tensor:
        """Evaluate masks by their moments, in groups that respect the batch's working set."""
        dimension = batch.features_BD.shape[1]
        per_mask = 8 * max(dimension**self.order, masks_GB.shape[1])
        if self.order == 2:
            per_mask += 4 * masks_GB.shape[1] * dimension
        group = max(1, batch.working_set_bytes // per_mask)
        return torch.cat([self._group(masks, batch) for masks in torch.split(masks_GB, group)])

    def _group(self, masks_GB: Tensor, batch: Batch) -> Tensor:
        weights = masks_GB.to(torch.float32)
        features = batch.features_BD
        num_masks, dimension = weights.shape[0], features.shape[1]
        first = weights @ features if self.order >= 1 else weights.new_zeros(num_masks, 0)
        second = weights.new_zeros(num_masks, 0, 0)
        if self.order == 2:
            weighted = weights[:, :, None] * features[None]
            second = weighted.transpose(1, 2) @ features.expand(num_masks, -1, dimension)
        sums = {
            name: times_vector(weights, score.to(torch.float32))
            for name, score in batch.scores.items()
        }
        quality = times_vector(weights, batch.quality_B.to(torch.float32))
        value = torch.func.vmap(lambda *moments: self.of_moments(Moments(*moments)))
        result: Tensor = value(weights.sum(1), quality, sums, first, second)
        return result
