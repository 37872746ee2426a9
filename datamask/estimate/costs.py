"""What a stage costs as a function of the run's size, fitted to what was measured.

Every stage but the report is linear: so much for a run, so much a shard, so much a document (the
sums are derived in docs/scaling.md). The report looks closely at a sample that does not grow with
the corpus: so much for a run, a document of the corpus (counting), a document of the sample, a
document on the map, and a pair of sampled document and other document of its shard (neighbours). No
cost is negative, so coefficients are found by non-negative least squares, of relative errors rather
than absolute ones: small measurements tell the fixed costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from datamask.config.outputs import LOOKS_CLOSER, SAMPLED_SHARDS, Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What costs grow with.

    Args:
        shards: of the run.
        documents: of the source.
        sampled: documents that the report looks at closely.
        mapped: of these, documents on the map.
        pairs: comparisons of one of these with another document of its shard.
    """

    shards: int
    documents: int
    sampled: int
    mapped: int
    pairs: int


def size_of(shards: int, documents: int, left: float, report: Report) -> Size:
    """The size of a run of equal shards.

    Args:
        shards: of the run.
        documents: of the source.
        left: share of the documents that is embedded.
        report: how closely the report looks.
    """
    candidates = int(left * documents)
    shard = candidates / shards
    sampled = min(report.sample_documents, int(shard * min(shards, SAMPLED_SHARDS)))
    return Size(
        shards=shards,
        documents=documents,
        sampled=sampled,
        mapped=min(report.map_documents, sampled),
        pairs=int(sampled * shard),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one stage took, all its shards together, one after another.

    Args:
        stage: its name.
        size: of the run.
        seconds: on the clock.
        cpu_seconds: of all threads of this process.
        disk_bytes: by which the run's folder grew.
        source_bytes: of the source's compressed columns that were read.
    """

    stage: str
    size: Size
    seconds: float
    cpu_seconds: float
    disk_bytes: int
    source_bytes: int


NOTHING = 1e-9
"""No stage costs less than a nanosecond, or part of a byte."""

COSTS = ("seconds", "cpu_seconds", "disk_bytes", "source_bytes")


def growth(stage: str, size: Size) -> tuple[int, ...]:
    """What the costs of a stage are proportional to."""
    if stage in LOOKS_CLOSER:
        return (1, size.documents, size.sampled, size.mapped, size.pairs)
    return (1, size.shards, size.documents)


@dataclass(frozen=True, slots=True)
class Law:
    """The costs of one stage at any size.

    Args:
        stage: its name.
        coefficients: by cost: of each of `growth`.
    """

    stage: str
    coefficients: dict[str, tuple[float, ...]]

    def at(self, cost: str, size: Size) -> float:
        """One of `COSTS` at a size."""
        terms = growth(self.stage, size)
        return sum(c * g for c, g in zip(self.coefficients[cost], terms, strict=True))


def fit(measured: Sequence[Measurement]) -> Law:
    """The law of a stage.

    Args:
        measured: all of one stage, at two sizes at least.
    """
    stage = measured[0].stage
    terms = np.asarray([growth(stage, one.size) for one in measured], dtype=np.float64)
    return Law(
        stage,
        {cost: _fitted(terms, [float(getattr(one, cost)) for one in measured]) for cost in COSTS},
    )


def _fitted(terms: np.ndarray, values: list[float]) -> tuple[float, ...]:
    """Coefficients, none negative, with the least sum of squared relative errors."""
    from scipy.optimize import nnls

    found = np.asarray(values)
    if found.max() < NOTHING:
        return tuple(0.0 for _ in terms[0])
    # Below a hundredth of the largest, a measurement is mostly the clock's noise.
    weight = 1 / np.maximum(found, found.max() / 100)
    # Columns of one size, or the largest would decide by itself what zero is.
    scale = np.abs(terms * weight[:, None]).max(axis=0)
    scale[scale == 0] = 1
    solution: np.ndarray = nnls(terms * weight[:, None] / scale, found * weight)[0]
    coefficients: list[float] = (solution / scale).tolist()
    return tuple(coefficients)
