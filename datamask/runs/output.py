"""Writing the Parquet file of a unit of work with its receipt."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from datamask.runs.files import write_parquet
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run


def write_output(
    run: Run,
    stage: str,
    unit: int,
    schema: pa.Schema,
    parts: Iterable[pa.Table | pa.RecordBatch],
    metrics: dict[str, Any],
) -> Receipt:
    """Write the file of a unit of work, with a receipt that holds *metrics*."""

    def receipt(rows: int) -> Receipt:
        return run.make_receipt(stage, unit, rows, metrics)

    path = run.local_path(stage, unit)
    return receipt(write_parquet(path, schema, parts, receipt, storage=run.storage))
