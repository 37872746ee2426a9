"""Time and memory of a large run: synthetic embeddings through every stage.

Creates clustered unit vectors with scores in the published DATAMASK layout, runs the pipeline on
them in a child process, and prints seconds per stage and the child's peak memory.

    python -m benchmarks.scale --rows 1000000 --folder runs/scale
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from datamask.runs.files import write_parquet
from datamask.runs.opening import open_run
from datamask.runs.records import read_record
from datamask.runs.stages import STAGES

DIMENSION = 768
ROWS_PER_GROUP = 25_000
SCHEMA = pa.schema(
    [
        pa.field("chunk_id", pa.string()),
        pa.field("quality_score", pa.float64()),
        pa.field("feature_arr", pa.list_(pa.float16(), DIMENSION)),
    ]
)


def clustered(rows: int, seed: int = 0, clusters: int = 200) -> Iterator[pa.RecordBatch]:
    """Batches of unit vectors around *clusters* centres of unequal size, with normal scores."""
    generator = np.random.default_rng(seed)
    centres = generator.standard_normal((clusters, DIMENSION), dtype=np.float32)
    share = generator.dirichlet(np.full(clusters, 0.5))
    for start in range(0, rows, ROWS_PER_GROUP):
        count = min(ROWS_PER_GROUP, rows - start)
        cluster = generator.choice(clusters, count, p=share)
        vectors = centres[cluster]
        vectors += generator.standard_normal(vectors.shape, dtype=np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        flat = pa.array(vectors.astype(np.float16).reshape(-1))
        yield pa.record_batch(
            [
                pa.array([f"document-{row:09d}" for row in range(start, start + count)]),
                pa.array(generator.standard_normal(count)),
                pa.FixedSizeListArray.from_arrays(flat, DIMENSION),
            ],
            schema=SCHEMA,
        )


def main() -> None:
    """Create the input if it is missing, run, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=Path("runs/scale"))
    parser.add_argument("--set", action="append", default=[], help="a setting, as for datamask")
    arguments = parser.parse_args()
    source = arguments.folder / f"input-{arguments.rows}.parquet"
    if not source.exists():
        write_parquet(source, SCHEMA, clustered(arguments.rows))
    root = arguments.folder / f"run-{arguments.rows}"
    command = [sys.executable, "-m", "datamask.cli.main", "rebuild", str(root)]
    for item in (f"source.path={source}", "source.layout=features", *arguments.set):
        command += ["--set", item]
    subprocess.run(command, check=True)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    run = open_run(root)
    print(f"\n{'stage':12s} {'seconds':>9s}")
    for stage in STAGES:
        records = [read_record(run, stage, unit) for unit in range(run.num_units(stage))]
        seconds = [record.seconds or 0 for record in records if record]
        if seconds:
            print(f"{stage:12s} {sum(seconds):9.1f}")
    print(f"{run.num_documents} documents, {run.num_shards} shards, peak memory {peak:.2f} GiB")


if __name__ == "__main__":
    main()
