"""A shard as the learner sees it, moments, and exact values of terms for a mask.

Embeddings stay in host memory in their stored precision and may be memory-mapped; only batches and
chunks are cast to float32 on the device. Sums over the shard are accumulated in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from datamask.config.compute import Compute
from datamask.errors import SettingsError
from datamask.objectives.facility_location import (
    FacilityLocation,
    fixed_sample,
    stratified_mean,
)
from datamask.objectives.level import NATURAL, Level
from datamask.objectives.products import times_vector
from datamask.objectives.protocol import CACHED_ROWS, Batch, MomentObjective, Moments, Objective
from datamask.objectives.trial import tried
from datamask.objectives.weighted import WeightedTerm

LARGEST_CHUNK = 8192
"""Maximum number of rows of a chunk. Larger chunks take more memory and no less time
(docs/log.md#memory)."""
TRIANGLE = 128
"""Columns of a block of a symmetric product (docs/log.md#memory)."""

Progress = Callable[[int, int, str], None]
"""Function that is told how much is done, how much there is at most, and what is counted."""


def precision_of(compute: Compute, device: torch.device) -> str:
    """Return the precision of products that steer learning; `auto` asks the hardware."""
    if compute.matmul != "auto":
        return compute.matmul
    # Without its matrix unit (AMX), a CPU takes longer for bfloat16 than for float32.
    is_fast = device.type != "cpu" or torch.cpu._is_amx_tile_supported()
    return "bfloat16" if is_fast and multiplies_bfloat16(device) else "float32"


def multiplies_bfloat16(device: torch.device) -> bool:
    """Return True if the device has instructions for products in bfloat16."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported())


@dataclass(frozen=True, slots=True)
class ShardData:
    """The documents of a shard.

    Args:
        features: N x D, float16 or float32, unit rows.
        quality_N: combined quality as it is learned (`Level.learned`), float32, on the device.
        scores: float32 scores of shape N by name, on the device.
        device: the device that computes.
        working_set_bytes: memory that may be used in addition to the embeddings.
        matmul: precision of large matrix products, as `compute.matmul`.
        places: rows of the documents in *features*; None for all, in order.
        level: converts between quality as it is learned and quality as it is reported.
        probes_NP: cosines of all documents with the probes of facility location, if known.
        by_document: if True, second moments are the weights w of the documents in Σ w x xᵀ, a
            number for each row of *features*, in place of that matrix.
        covers: results of `cover_of_probes` by number of probes and mask, because learning, the
            scales and the judge ask about the same masks.
    """

    features: np.ndarray
    quality_N: Tensor
    scores: Mapping[str, Tensor]
    device: torch.device
    working_set_bytes: int
    matmul: str = "float32"
    places: np.ndarray | None = None
    level: Level = NATURAL
    probes_NP: Tensor | None = None
    by_document: bool = False
    covers: dict[tuple[int, bytes], Tensor] = field(default_factory=dict)

    def product(self, left: Tensor, right: Tensor) -> Tensor:
        """Multiply two matrices in the precision of `matmul`; float32. Only to steer learning."""
        cuda = torch.backends.cuda.matmul
        before, cuda.allow_tf32 = cuda.allow_tf32, self.matmul == "tf32"
        try:
            return (self.narrow(left) @ self.narrow(right)).to(torch.float32)
        finally:
            cuda.allow_tf32 = before

    def narrow(self, factor: Tensor, rows: int = 0) -> Tensor:
        """Convert a factor once for several calls of `product`; on a CPU, pad it to *rows* rows.

        oneDNN keeps code in memory for every size of a product in bfloat16 (docs/log.md#memory).
        """
        if self.matmul != "bfloat16":
            return factor
        narrow, missing = factor.bfloat16(), rows - len(factor)
        is_short = missing > 0 and self.device.type == "cpu"
        return torch.nn.functional.pad(narrow, (0, 0, 0, missing)) if is_short else narrow

    @property
    def exact(self) -> ShardData:
        """Return the same data with products in full precision, for values that are reported."""
        return self if self.matmul == "float32" else replace(self, matmul="float32")

    @property
    def num_documents(self) -> int:
        """N."""
        return len(self.quality_N)

    @property
    def dimension(self) -> int:
        """D."""
        return int(self.features.shape[1])

    @property
    def chunk_rows(self) -> int:
        """Rows per chunk: copy, product and weights take at most a quarter of the working set."""
        return max(64, min(LARGEST_CHUNK, self.working_set_bytes // (4 * 16 * self.dimension)))

    @property
    def cached_rows(self) -> int:
        """Rows of a block whose temporary copies stay in the processor's cache."""
        return CACHED_ROWS if self.device.type == "cpu" else self.chunk_rows

    def triangle(self) -> list[tuple[int, int]]:
        """Cut D rows into blocks; a symmetric D x D product needs their columns from start on."""
        size = TRIANGLE if self.device.type == "cpu" else self.dimension
        starts = range(0, self.dimension, size)
        return [(start, min(start + size, self.dimension)) for start in starts]

    def rows(self, rows: Tensor | slice, order: int = 1, memory: Tensor | None = None) -> Tensor:
        """Return the embeddings of some documents, float32, B x D; B x 0 for moments of order 0.

        *memory*, if given, has at least as many rows and becomes the result.
        """
        positions, size = self._places(rows), self.cached_rows
        if memory is None:
            memory = self.quality_N.new_empty(len(positions), self.dimension * (order >= 1))
        taken = memory[: len(positions)]
        for start in range(0, len(positions) if order >= 1 else 0, size):
            chunk = slice(start, start + size)
            taken[chunk] = torch.from_numpy(self.features[positions[chunk]]).to(self.device)
        return taken

    def blocks(
        self, rows: Tensor | slice = slice(None), order: int = 1
    ) -> Iterator[tuple[slice, Tensor]]:
        """Yield some documents in blocks: places in *rows*; embeddings, valid until the next."""
        if isinstance(rows, slice):
            rows = torch.arange(*rows.indices(self.num_documents))
        size, memory = min(self.cached_rows, len(rows)), None
        for start in range(0, len(rows), size or 1):
            chunk = slice(start, min(start + size, len(rows)))
            block = self.rows(rows[chunk], order, memory)
            memory = block if memory is None else memory
            yield chunk, block

    def feature_rows(self, rows: Tensor | slice) -> Tensor:
        """Return the rows of `features` that hold some documents, on the device."""
        return torch.from_numpy(self._places(rows)).to(self.device)

    def _places(self, rows: Tensor | slice = slice(None)) -> np.ndarray:
        if isinstance(rows, slice):
            rows = torch.arange(*rows.indices(self.num_documents))
        places: np.ndarray = rows.cpu().numpy()
        return places if self.places is None else self.places[places]

    def chunks(self) -> list[slice]:
        """Divide all documents, in order, into slices of `chunk_rows`."""
        size = self.chunk_rows
        return [slice(start, start + size) for start in range(0, self.num_documents, size)]

    def part(self, rows: Tensor) -> ShardData:
        """Return some documents as a shard of their own; no embedding is copied."""
        scores = {name: score[rows] for name, score in self.scores.items()}
        places = self._places(rows)
        quality = self.quality_N[rows]
        return replace(
            self, quality_N=quality, scores=scores, places=places, probes_NP=None, covers={}
        )

    def joined(self, others: ShardData) -> ShardData:
        """Copy these documents, followed by the documents of another shard."""

        def both(first: Tensor, other: Tensor) -> Tensor:
            return torch.cat([first, other.to(self.device)])

        stored = [data.features[data._places()] for data in (self, others)]
        return replace(
            self,
            features=np.concatenate(stored),
            quality_N=both(self.quality_N, others.quality_N),
            scores={name: both(score, others.scores[name]) for name, score in self.scores.items()},
            places=None,
            probes_NP=None,
            covers={},
        )

    def batch(self, rows: Tensor) -> Batch:
        """Return some documents in the form that objectives take."""
        scores = {name: score[rows] for name, score in self.scores.items()}
        budget = max(self.working_set_bytes // 2, 1)
        return Batch(self.rows(rows), self.quality_N[rows], scores, budget)

    def everything(self) -> Batch:
        """Return all documents in the form that objectives take; call it only if `fits`."""
        return self.batch(torch.arange(self.num_documents, device=self.device))

    def fits(self) -> bool:
        """True if a float32 copy of the embeddings fits in the working set."""
        return 4 * self.num_documents * self.dimension <= self.working_set_bytes


@dataclass(frozen=True, slots=True)
class Reference:
    """Raw values of a term, with which a selection is compared.

    Args:
        random: mean over random selections with equally many documents.
        best: value of the best selection by this term alone; None if it was not learned.
        cover_P: mean cosine of each probe of facility location with its nearest document in random
            selections; None for other terms.
    """

    random: float
    best: float | None = None
    cover_P: Tensor | None = None

    @property
    def range(self) -> float:
        """The gain of the best selection over random ones, >= 0; 0 if it is not known."""
        return abs(self.best - self.random) if self.best is not None else 0.0


def zero_moments(data: ShardData, order: int) -> Moments:
    """Return the moments of the empty selection, float64."""
    zero = torch.zeros((), dtype=torch.float64, device=data.device)
    first = zero.new_zeros(data.dimension if order >= 1 else 0)
    width = (len(data.features) if data.by_document else data.dimension) if order >= 2 else 0
    second = zero.new_zeros((width,) if data.by_document else (width, width))
    return Moments(zero, zero, dict.fromkeys(data.scores, zero), first, second)


def add_moments(
    moments: Moments,
    data: ShardData,
    rows: Tensor | slice,
    weights_B: Tensor,
    *,
    exact: bool = True,
) -> Moments:
    """Add documents to moments by weight, which may be negative; return the sums.

    If not *exact*, products have the precision of `compute.matmul`.
    """
    data = data.exact if exact else data
    wide = weights_B.to(torch.float64)
    first, second = (
        torch.zeros_like(total, dtype=torch.float32)
        for total in (moments.first_D, moments.second_DD)
    )
    is_matrix = second.dim() == 2 and len(second) > 0

    def weighed(values_N: Tensor) -> Tensor:
        # A dot product would round differently with each number of threads.
        return (wide * values_N[rows].to(torch.float64)).sum()

    if len(first):
        for chunk, features in data.blocks(rows):
            first += times_vector(features.T, weights_B[chunk])
            if is_matrix:
                _add_squares(second, data, features, weights_B[chunk])
    if is_matrix:
        second = second.triu_().add_(second.triu(1).T)
    second = second.to(torch.float64)
    if data.by_document and len(second):
        second[data.feature_rows(rows)] = wide
    return Moments(
        moments.count + wide.sum(),
        moments.quality + weighed(data.quality_N),
        {name: total + weighed(data.scores[name]) for name, total in moments.scores.items()},
        moments.first_D + first,
        second.add_(moments.second_DD),
    )


def _add_squares(total_DD: Tensor, data: ShardData, features_BD: Tensor, weights_B: Tensor) -> None:
    """Add Σ w x xᵀ to the upper triangle; the rest is undefined."""
    plain = data.narrow(features_BD, CACHED_ROWS).T
    other = data.narrow(features_BD * weights_B[:, None], CACHED_ROWS)
    for start, stop in data.triangle():
        total_DD[start:stop, start:] += data.product(plain[start:stop], other[:, start:])


def moments_of(data: ShardData, weights_N: Tensor, order: int, *, exact: bool = True) -> Moments:
    """Sum the moments of the shard under weights (`add_moments`); rows of weight 0 are not read."""
    moments = zero_moments(data, order)
    for rows in torch.split(weights_N.nonzero()[:, 0], data.chunk_rows):
        weights = weights_N[rows].to(torch.float32)
        moments = add_moments(moments, data, rows, weights, exact=exact)
    return moments


def highest_order(terms: Sequence[WeightedTerm]) -> int:
    """Return the highest order of moments that a term reads; −1 if no term reads moments."""
    orders = [t.objective.order for t in terms if isinstance(t.objective, MomentObjective)]
    return max(orders, default=-1)


def raw_values(terms: Sequence[WeightedTerm], data: ShardData, mask_N: Tensor) -> dict[str, float]:
    """Compute the raw value of each term for one mask of the whole shard, by name.

    Moment objectives and facility location are streamed. Any other objective is evaluated on as
    many random documents as fit in the working set.

    Raises:
        SettingsError: a term fails, or its value is not finite.
    """
    if not bool(mask_N.any()):
        return {term.objective.name: 0.0 for term in terms}
    moments = moments_of(data, mask_N.to(torch.float32), highest_order(terms))
    values = {}
    for term in terms:
        name = term.objective.name
        values[name] = tried(term.objective, _raw_value, term.objective, data, mask_N, moments)
        if not math.isfinite(values[name]):
            raise SettingsError(
                f"objective `{name}`: {values[name]} for {int(mask_N.sum()):,} documents; it must "
                "give finite numbers"
            )
    return values


def _raw_value(objective: Objective, data: ShardData, mask_N: Tensor, moments: Moments) -> float:
    if isinstance(objective, MomentObjective):
        return float(objective.of_moments(moments))
    if not isinstance(objective, FacilityLocation):
        rows = sampled_rows(data)
        return float(objective.values(mask_N[rows][None], data.batch(rows))[0])
    cover = cover_of_probes(objective, data, mask_N)
    return float(value_of_cover(objective, data, mask_N, cover))


def cover_of_probes(objective: FacilityLocation, data: ShardData, mask_N: Tensor) -> Tensor:
    """Return the cosine of each probe with its nearest selected document, shape P.

    At least one document must be selected.
    """
    if data.probes_NP is not None:
        return data.probes_NP[mask_N].amax(0)
    key = objective.probes, np.packbits(mask_N.cpu().numpy()).tobytes()
    if key not in data.covers:
        probes = data.rows(objective.probe_rows(data.num_documents))
        best = torch.full((len(probes),), -torch.inf, device=data.device)
        size = max(1, min(data.cached_rows, data.working_set_bytes // (8 * len(probes))))
        for rows in torch.split(mask_N.nonzero()[:, 0], size):
            best = torch.maximum(best, (probes @ data.rows(rows).T).amax(1))
        data.covers[key] = best
    return data.covers[key]


def value_of_cover(
    objective: FacilityLocation, data: ShardData, masks_GN: Tensor, covers_GP: Tensor
) -> Tensor:
    """Return facility location, given `cover_of_probes`, of one mask or of G; float64."""
    rows = objective.probe_rows(data.num_documents).to(data.device)
    share = masks_GN.sum(-1).to(torch.float64) / data.num_documents
    return stratified_mean(covers_GP, masks_GN[..., rows], share)


def by_document(
    data: ShardData, terms: Sequence[WeightedTerm]
) -> tuple[ShardData, Sequence[WeightedTerm]]:
    """Use terms of N x N products if N < D and every term that reads Σ x xᵀ has such a form."""
    if data.num_documents >= data.dimension or highest_order(terms) < 2:
        return data, terms
    features, few = data.rows(slice(None)), []
    for term in terms:
        objective = term.objective
        if isinstance(objective, MomentObjective) and objective.order == 2:
            if (form := objective.of_few(features)) is None:
                return data, terms
            term = replace(term, objective=form)
        few.append(term)
    return replace(data, by_document=True), few


def sampled_rows(data: ShardData) -> Tensor:
    """Return all rows of the shard, or as many random ones as fit in the working set, ascending."""
    most = max(2, data.working_set_bytes // (4 * data.dimension))
    return fixed_sample(data.num_documents, most).to(data.device)
