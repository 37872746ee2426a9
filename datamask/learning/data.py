"""One shard as the learner sees it, and exact values of every term for a mask of the whole shard.

Embeddings stay where they are, in their stored precision, perhaps memory-mapped; only batches and
chunks are cast to float32 on the device. Sums over the shard are gathered in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from datamask.errors import SettingsError
from datamask.objectives.facility_location import FacilityLocation
from datamask.objectives.protocol import Batch, MomentObjective, Moments, Objective
from datamask.objectives.trial import failed
from datamask.objectives.weighted import WeightedTerm


@dataclass(frozen=True, slots=True)
class ShardData:
    """Documents of a shard.

    Args:
        features: unit rows, N x D, float16 or float32.
        quality_N: combined quality, float32, on the device.
        scores: named scores, float32, on the device.
        device: where arithmetic is done.
        working_set_bytes: memory beside the embeddings.
        matmul: precision of the learner's large products, as `compute.matmul`.
    """

    features: np.ndarray
    quality_N: Tensor
    scores: Mapping[str, Tensor]
    device: torch.device
    working_set_bytes: int
    matmul: str = "float32"

    def product(self, one: Tensor, other: Tensor) -> Tensor:
        """A matrix product in the precision of `matmul`; float32 out.

        Only for what steers learning: values that are reported or compared are exact.
        """
        if self.matmul == "bfloat16":
            return (one.bfloat16() @ other.bfloat16()).to(torch.float32)
        if self.matmul == "float32":
            return one @ other
        cuda = torch.backends.cuda.matmul
        before, cuda.allow_tf32 = cuda.allow_tf32, True
        try:
            return one @ other
        finally:
            cuda.allow_tf32 = before

    @property
    def num_documents(self) -> int:
        """Documents in the shard."""
        return len(self.features)

    @property
    def dimension(self) -> int:
        """Width of an embedding."""
        return int(self.features.shape[1])

    @property
    def chunk_rows(self) -> int:
        """Rows cast at once: copy, product and weights take about a quarter of the working set."""
        return max(64, self.working_set_bytes // (4 * 16 * self.dimension))

    def rows(self, rows: Tensor | slice) -> Tensor:
        """Embeddings of some documents in float32 on the device."""
        taken = self.features[rows if isinstance(rows, slice) else rows.cpu().numpy()]
        return torch.from_numpy(np.ascontiguousarray(taken)).to(self.device).to(torch.float32)

    def chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """All embeddings in order, a chunk at a time."""
        for start in range(0, self.num_documents, self.chunk_rows):
            part = slice(start, min(start + self.chunk_rows, self.num_documents))
            yield part, self.rows(part)

    def batch(self, rows: Tensor) -> Batch:
        """Some documents as objectives see them."""
        scores = {name: score[rows] for name, score in self.scores.items()}
        budget = max(self.working_set_bytes // 2, 1)
        return Batch(self.rows(rows), self.quality_N[rows], scores, budget)

    def everything(self) -> Batch:
        """All documents; only for shards whose float32 copy fits in the working set."""
        return self.batch(torch.arange(self.num_documents, device=self.device))

    def fits(self) -> bool:
        """Whether `everything` respects the working set."""
        return 4 * self.features.size <= self.working_set_bytes


def zero_moments(data: ShardData, order: int) -> Moments:
    """Moments of no document, float64."""
    width = data.dimension if order >= 1 else 0
    square = data.dimension if order >= 2 else 0
    zero = torch.zeros((), dtype=torch.float64, device=data.device)
    return Moments(
        zero,
        zero.clone(),
        {name: zero.clone() for name in data.scores},
        zero.new_zeros(width),
        zero.new_zeros(square, square),
    )


Product = Callable[[Tensor, Tensor], Tensor]


def add_moments(
    moments: Moments,
    data: ShardData,
    rows: Tensor | slice,
    features_BD: Tensor,
    weights_B: Tensor,
    product: Product = torch.matmul,
) -> Moments:
    """Moments with documents added by weight (negative weights take them away)."""
    wide = weights_B.to(torch.float64)
    first, second = moments.first_D, moments.second_DD
    if len(first):
        first = first + (weights_B @ features_BD).to(torch.float64)
    if len(second):
        second = second + product(features_BD.T, features_BD * weights_B[:, None]).to(torch.float64)
    return Moments(
        moments.count + wide.sum(),
        moments.quality + wide @ data.quality_N[rows].to(torch.float64),
        {n: s + wide @ data.scores[n][rows].to(torch.float64) for n, s in moments.scores.items()},
        first,
        second,
    )


def scaled_moments(moments: Moments, count: float) -> Moments:
    """The same documents in the same proportions, *count* of them."""
    share = count / float(moments.count)
    return _combined(moments, moments, share, 0.0)


def mixed_moments(one: Moments, other: Moments, share: float) -> Moments:
    """(1 − share) of one and share of the other: moments are linear in p."""
    return _combined(one, other, 1 - share, share)


def _combined(one: Moments, other: Moments, first: float, second: float) -> Moments:
    return Moments(
        first * one.count + second * other.count,
        first * one.quality + second * other.quality,
        {name: first * one.scores[name] + second * other.scores[name] for name in one.scores},
        first * one.first_D + second * other.first_D,
        first * one.second_DD + second * other.second_DD,
    )


def moments_of(
    data: ShardData, weights_N: Tensor, order: int, product: Product = torch.matmul
) -> Moments:
    """Moments of the shard under weights; documents of weight 0 are not read."""
    moments = zero_moments(data, order)
    for rows in torch.split(weights_N.nonzero()[:, 0], data.chunk_rows):
        features = data.rows(rows) if order else data.quality_N.new_zeros(len(rows), 0)
        weights = weights_N[rows].to(torch.float32)
        moments = add_moments(moments, data, rows, features, weights, product)
    return moments


def highest_order(terms: Sequence[WeightedTerm]) -> int:
    """The highest moment any of the terms reads; −1 if none is a moment objective."""
    orders = [t.objective.order for t in terms if isinstance(t.objective, MomentObjective)]
    return max(orders, default=-1)


def raw_values(terms: Sequence[WeightedTerm], data: ShardData, mask_N: Tensor) -> dict[str, float]:
    """Each term's raw value for one mask of the whole shard.

    Moment objectives and facility location stream. Any other objective needs its documents at
    once: if they do not fit in the working set it is evaluated on a random sample of them.

    Raises:
        SettingsError: a term fails, or its value is not finite.
    """
    if not bool(mask_N.any()):
        return {term.objective.name: 0.0 for term in terms}
    moments = moments_of(data, mask_N.to(torch.float32), highest_order(terms))
    values = {}
    for term in terms:
        objective = term.objective
        try:
            if isinstance(objective, MomentObjective):
                value = float(objective.of_moments(moments))
            elif isinstance(objective, FacilityLocation):
                value = _facility_location(objective, data, mask_N)
            else:
                value = _sampled(objective, data, mask_N)
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            raise failed(objective, error) from error
        if not math.isfinite(value):
            raise SettingsError(
                f"objective `{objective.name}`: {value} for {int(mask_N.sum())} documents; it must "
                "give finite numbers"
            )
        values[objective.name] = value
    return values


def _facility_location(objective: FacilityLocation, data: ShardData, mask_N: Tensor) -> float:
    probes = data.rows(objective.probe_rows(data.num_documents))
    best = torch.full((len(probes),), -torch.inf, device=data.device)
    size = max(1, min(data.chunk_rows, data.working_set_bytes // (8 * len(probes))))
    for rows in torch.split(mask_N.nonzero()[:, 0], size):
        best = torch.maximum(best, (probes @ data.rows(rows).T).amax(1))
    return float(best.mean(dtype=torch.float64))


def sampled_rows(data: ShardData) -> Tensor:
    """All rows of the shard, or as many random ones as fit in the working set, ascending."""
    if data.fits():
        return torch.arange(data.num_documents, device=data.device)
    generator = torch.Generator().manual_seed(data.num_documents)
    size = max(2, data.working_set_bytes // (4 * data.dimension))
    order = torch.randperm(data.num_documents, generator=generator)[:size]
    return order.sort().values.to(data.device)


def _sampled(objective: Objective, data: ShardData, mask_N: Tensor) -> float:
    rows = sampled_rows(data)
    return float(objective.values(mask_N[rows][None], data.batch(rows))[0])
