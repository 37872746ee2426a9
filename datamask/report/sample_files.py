"""The files of the report's sample: schemas and paths, without the libraries that make them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from datamask.runs.run import Run

SETS = ("candidates", "selected", "top_quality", "random")

SAMPLE = pa.schema(
    [
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("x", pa.float32()),  # on the map; null if not on it
        pa.field("y", pa.float32()),
        # Mean cosine to the ten nearest of at most 25,000 documents of the shard.
        pa.field("density", pa.float32(), nullable=False),
        # In the most diverse subset of the sample: the same metric, lambda 0, the run's ratio.
        pa.field("diverse", pa.bool_(), nullable=False),
        pa.field("beginning", pa.string()),
    ]
)
NEIGHBOUR = pa.schema(
    [
        pa.field("set", pa.string(), nullable=False),
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("cosine", pa.float32(), nullable=False),  # to the nearest other of set and shard
    ]
)


def sample_path(run: Run) -> Path:
    """The file of the sample."""
    return run.root / "report" / "sample.parquet"


def neighbours_path(run: Run) -> Path:
    """The file of the cosines to nearest neighbours."""
    return run.root / "report" / "neighbours.parquet"
