"""Stage `scales`: how the values of each score are brought to the scale of the corpus.

It adds up what stage `scores` noted of each shard, in the order of shards, so that every machine
gets the same numbers. It reads values of a few shards only, to divide the range of a score into
the partitions of stage `comparison`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datamask.config.compute import Compute
from datamask.config.inputs import Score
from datamask.errors import InputError
from datamask.quality.moments import merged_moments
from datamask.quality.partitions import num_partitions
from datamask.runs import schemas
from datamask.runs.files import read_columns
from datamask.runs.output import write_output
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run
from datamask.selection.mask_model import judged_by

SAMPLED_SHARDS = 64
"""Shards whose values divide a score's range. What is in a partition does not change results."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The scale of one score over the corpus. A filled value counts like any other.

    Args:
        count: documents that have it.
        offset: z-score and min-max are (value - offset) / divisor.
        divisor: see there.
        borders: first value of each partition but the first, ascending (normalisation `rank`).
        values: ascending values of known rank; empty if ranks are those of this corpus.
        shares: their ranks in [0, 1).
    """

    count: int
    offset: float = 0.0
    divisor: float = 1.0
    borders: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)


def find_scales(run: Run, compute: Compute) -> None:
    """Write `scales.parquet`: a row per score, in the order of the settings.

    A run that is judged by a mask model has the scales of the model's corpus.

    Raises:
        InputError: a score is missing and its policy is `error`, or its values are too large.
        RunError: a shard's scores are missing or stale.
    """
    receipts = [run.receipt("scores", shard) for shard in range(run.num_shards)]
    _refuse_missing(run, receipts)
    about = judged_by(run)
    known = about["normalisation"] if about else {}
    rows = [
        {"score": score.name, **asdict(_scale_of(run, score, receipts, known.get(score.name)))}
        for score in run.settings.scores
    ]
    table = pa.Table.from_pylist(rows, schema=schemas.SCALES)
    write_output(run, "scales", 0, schemas.SCALES, [table], {})


def read_scales(run: Run) -> list[Scale]:
    """The scales of the scores, in the order of the settings.

    Raises:
        RunError: the file is missing or stale.
    """
    run.receipt("scales")
    rows = read_columns(run.path("scales")).drop_columns("score").to_pylist()
    return [Scale(**row) for row in rows]


def _refuse_missing(run: Run, receipts: list[Receipt]) -> None:
    for score, receipt in product(run.settings.scores, receipts):
        missing = receipt.metrics["scores"][score.name]["missing"]
        if missing and score.missing == "error":
            raise InputError(
                f"score missing, NaN or infinite in {missing} documents; fix them, or set "
                f"missing of score {score.name} to drop or fill",
                path=run.path("scores", receipt.unit),
                shard=receipt.unit,
                column=score.name,
            )


def _scale_of(run: Run, score: Score, receipts: list[Receipt], known: list[Any] | None) -> Scale:
    found = [receipt.metrics["scores"][score.name] for receipt in receipts]
    filled = sum(one["missing"] for one in found) if score.missing == "fill" else 0
    scale = Scale(sum(one["count"] for one in found) + filled)
    if score.normalisation == "rank":
        if known:
            return replace(scale, values=known[0], shares=known[1])
        return replace(scale, borders=_borders(run, score))
    moments = known or merged_moments(run, receipts, score).scale(score.normalisation)
    return replace(scale, offset=moments[0], divisor=moments[1])


def _borders(run: Run, score: Score) -> list[float]:
    number = num_partitions(run.num_documents)
    if number == 1:
        return []
    shards = np.unique(np.linspace(0, run.num_shards - 1, SAMPLED_SHARDS).round().astype(int))
    tables = (read_columns(run.path("scores", int(shard)), [score.name]) for shard in shards)
    values = np.sort(pa.concat_tables(tables)[score.name].drop_null().to_numpy())
    if not len(values):
        return [math.inf] * (number - 1)
    return [float(values[len(values) * part // number]) for part in range(1, number)]


def filled(values: pa.ChunkedArray, score: Score) -> np.ndarray:
    """A score's raw values, float64, NaN where it is missing and not filled."""
    value = score.fill_value + 0.0 if score.missing == "fill" else math.nan
    array: np.ndarray = pc.fill_null(values, value).to_numpy()
    return array
