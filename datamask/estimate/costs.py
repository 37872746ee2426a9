"""The cost of a stage as a function of the run's size, fitted to measurements.

Most stages are linear in shards and documents, with a fixed cost per run (docs/scaling.md derives
the sums). What is learned or kept of a sample of the corpus is linear in the sample, which soon
stops growing. The report draws a sample too; its cost is linear in documents of the corpus,
documents of the sample, documents on the map, and pairs of a sampled document and another document
of its shard (neighbours). Coefficients are fitted by non-negative least squares of relative errors,
because small measurements determine the fixed costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from datamask.config.outputs import LOOKS_CLOSER, SAMPLED_SHARDS
from datamask.config.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The quantities that determine costs.

    Args:
        shards: of the run.
        documents: of the source.
        sampled: documents in the report's sample.
        mapped: sampled documents on the map.
        pairs: comparisons of a sampled document with another document of its shard.
        drawn: documents that shards draw for samples of the corpus.
        stand_ins: those of them that stand for the corpus in rounds and for the mask model.
    """

    shards: int
    documents: int
    sampled: int
    mapped: int
    pairs: int
    drawn: int
    stand_ins: int


ROUNDS = 3
"""Number of rounds that a forecast assumes in scope `corpus`, if as many are allowed. In
benchmarks/README.md#one-pass, rounds settle after three to five."""


def forecast_rounds(settings: Settings) -> int:
    """Number of rounds that a forecast assumes; 0 if shards do not exchange sums."""
    return min(settings.selection.num_rounds, ROUNDS)


def size_of(shards: int, documents: int, left: float, settings: Settings) -> Size:
    """The size of a run of equal shards, of which a share (*left*) of the documents is embedded."""
    from datamask.selection.sampling import most_drawn, stand_ins  # imports torch

    report, selection = settings.report, settings.selection
    candidates = int(left * documents)
    shard = candidates / shards
    sampled = min(report.sample_documents, int(shard * min(shards, SAMPLED_SHARDS)))
    return Size(
        shards=shards,
        documents=documents,
        sampled=sampled,
        mapped=min(report.map_documents, sampled),
        pairs=int(sampled * shard),
        drawn=min(most_drawn(selection), candidates),
        stand_ins=min(stand_ins(selection), candidates),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The cost of one stage with all its shards, one after another.

    Args:
        stage: its name.
        size: of the run.
        seconds: wall-clock time.
        cpu_seconds: of all threads of this process.
        disk_bytes: growth of the run's folder.
        source_bytes: compressed bytes read from the source.
    """

    stage: str
    size: Size
    seconds: float
    cpu_seconds: float
    disk_bytes: int
    source_bytes: int


NOTHING = 1e-9
"""Costs below this count as zero."""

COSTS = ("seconds", "cpu_seconds", "disk_bytes", "source_bytes")


def growth(stage: str, cost: str, size: Size) -> tuple[int, ...]:
    """The terms in which one of `COSTS` of a stage is linear."""
    if stage in LOOKS_CLOSER:
        return (1, size.documents, size.sampled, size.mapped, size.pairs)
    on_disk, last = cost == "disk_bytes", size.documents
    if stage == "corpus_statistics":
        last = size.drawn
    if stage in ("round_total", "mask_model"):
        last = size.stand_ins if on_disk else size.drawn
    if stage == "outcome" and on_disk:
        last = size.stand_ins
    return (1, size.shards, last)


@dataclass(frozen=True, slots=True)
class Law:
    """The costs of one stage at any size: coefficients of the terms of `growth`, by cost."""

    stage: str
    coefficients: dict[str, tuple[float, ...]]

    def at(self, cost: str, size: Size) -> float:
        """One of `COSTS` at a size."""
        terms = growth(self.stage, cost, size)
        return sum(c * g for c, g in zip(self.coefficients[cost], terms, strict=True))


def fit(measured: Sequence[Measurement]) -> Law:
    """The law of a stage, from measurements of it at two or more sizes."""
    stage = measured[0].stage
    return Law(stage, {cost: _fitted(stage, cost, measured) for cost in COSTS})


def _fitted(stage: str, cost: str, measured: Sequence[Measurement]) -> tuple[float, ...]:
    """Non-negative coefficients with the smallest sum of squared relative errors."""
    from scipy.optimize import nnls

    terms = np.asarray([growth(stage, cost, one.size) for one in measured], dtype=np.float64)
    found = np.asarray([float(getattr(one, cost)) for one in measured])
    if found.max() < NOTHING:
        return tuple(0.0 for _ in terms[0])
    # Measurements below a hundredth of the largest are mostly noise.
    weight = 1 / np.maximum(found, found.max() / 100)
    # Scale the columns, because the tolerance of `nnls` is absolute.
    scale = np.abs(terms * weight[:, None]).max(axis=0)
    scale[scale == 0] = 1
    solution: np.ndarray = nnls(terms * weight[:, None] / scale, found * weight)[0]
    coefficients: list[float] = (solution / scale).tolist()
    return tuple(coefficients)
