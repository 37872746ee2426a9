"""The files of a unit of work: write one with its receipt, or compare all with their checksums."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from datamask.runs.checkpoints import Checkpoints
from datamask.runs.files import write_parquet
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run

ROWS_PER_BATCH = 65_536
"""Rows of a batch that a file gets from columns in memory (docs/log.md#memory)."""


def write_output(
    run: Run,
    stage: str,
    unit: int,
    schema: pa.Schema,
    parts: Iterable[pa.Table | pa.RecordBatch],
    metrics: dict[str, Any],
) -> Receipt:
    """Write a unit's file, with a receipt that holds *metrics*, and remove its checkpoints."""
    receipt = partial(run.make_receipt, stage, unit, metrics=metrics)
    path = run.local_path(stage, unit)
    made = receipt(write_parquet(path, schema, parts, receipt, storage=run.storage))
    Checkpoints(run, stage, run.shard_of(stage, unit)).clear()
    return made


def write_columns(
    run: Run,
    stage: str,
    unit: int,
    schema: pa.Schema,
    columns: dict[str, np.ndarray],
    metrics: dict[str, Any],
) -> None:
    """Write a unit's file, as `write_output`, from columns in memory."""
    table = pa.table(columns, schema)
    parts = table.to_batches(max_chunksize=ROWS_PER_BATCH) or [table]
    write_output(run, stage, unit, schema, parts, metrics)


def refuse_damaged(run: Run, stage: str, unit: int = 0) -> None:
    """Compare all files of a unit with their checksums.

    Raises:
        CorruptFileError: a file is damaged or missing (`Run.fetch`).
    """
    for name in (*run.beside(stage, unit), run.name(stage, unit)):
        run.fetch(name)
