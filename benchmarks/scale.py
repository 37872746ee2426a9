"""Time, memory and disk of a large run, stage by stage: vectors and scores, without texts.

Creates clustered unit vectors with scores in the published DATAMASK layout, runs all stages on
them in this process, and prints a line for each: CPU seconds, seconds, the most memory (Linux), and
the size of the run's folder afterwards.

    python -m benchmarks.scale --rows 1000000 --folder runs/scale
    python -m benchmarks.scale --rows 10000000 --dimension 64 --set selection.method=top_quality
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from datamask.config.compute import Compute
from datamask.config.loading import load_settings
from datamask.config.settings import Settings
from datamask.execution.pipeline import run_stage
from datamask.planning.plan import plan_run
from datamask.runs.files import write_parquet
from datamask.runs.run import Run
from datamask.runs.stages import stages_of

DIMENSION = 768
ROWS_PER_GROUP = 25_000


def schema(dimension: int = DIMENSION) -> pa.Schema:
    """Columns of the published DATAMASK layout, without texts."""
    return pa.schema(
        [
            pa.field("chunk_id", pa.string()),
            pa.field("quality_score", pa.float64()),
            pa.field("feature_arr", pa.list_(pa.float16(), dimension)),
        ]
    )


def clustered(
    rows: int, seed: int = 0, clusters: int = 200, dimension: int = DIMENSION
) -> Iterator[pa.RecordBatch]:
    """Batches of unit vectors around *clusters* centres of unequal size, with normal scores."""
    generator = np.random.default_rng(seed)
    centres = generator.standard_normal((clusters, dimension), dtype=np.float32)
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
                pa.FixedSizeListArray.from_arrays(flat, dimension),
            ],
            schema=schema(dimension),
        )


def watch(root: Path, settings: Settings, compute: Compute) -> Run:
    """Run all stages in this process, and print what each takes."""
    print("| stage | CPU s | s | GB | folder, GB |\n|:--|--:|--:|--:|--:|")
    for stage in ("plan", *stages_of(settings)):
        Path("/proc/self/clear_refs").write_text("5")  # The peak begins anew.
        cpu, start = time.process_time(), time.monotonic()
        if stage == "plan":
            run = plan_run(root, settings, compute)
        else:
            run_stage(run, stage, compute)
        taken = f"{time.process_time() - cpu:.1f} | {time.monotonic() - start:.1f}"
        [peak] = re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
        disk = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
        print(f"| {stage} | {taken} | {int(peak) / 1e6:.1f} | {disk / 1e9:.2f} |", flush=True)
    print(f"| all | {time.process_time():.1f} | | | |")
    return run


def main() -> None:
    """Create the input if it is missing, run all stages, and print what they take."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dimension", type=int, default=DIMENSION)
    parser.add_argument("--folder", type=Path, default=Path("runs/scale"))
    parser.add_argument("--set", action="append", default=[], help="a setting, as for datamask")
    given = parser.parse_args()
    name = f"{given.rows}-{given.dimension}"
    source = given.folder / f"input-{name}.parquet"
    if not source.exists():
        batches = clustered(given.rows, dimension=given.dimension)
        write_parquet(source, schema(given.dimension), batches)
    own = (f"source.path={source}", "source.layout=features")
    items = (*own, f"embedding.dimension={given.dimension}", *given.set)
    watch(given.folder / f"run-{name}", *load_settings(None, items))


if __name__ == "__main__":
    main()
