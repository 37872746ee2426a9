"""From the plan to quality: time, memory and disk of each stage on many documents.

Documents of a few words, a tenth of them copies, with one score, in files of half a million rows.
Each stage runs in a process of its own on one worker with `compute.duckdb_memory` 1GB, so that its
peak memory can be told.

    python -m benchmarks.quality_stages FOLDER [--documents 10000000] [--shards 20]
        [--normalisation rank]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datamask.config.compute import Compute
from datamask.config.loading import parse_settings
from datamask.config.settings import Settings
from datamask.execution.pipeline import run_stage
from datamask.planning.plan import plan_run
from datamask.runs.opening import open_run
from datamask.runs.stages import STAGES, stages_of

ROWS_PER_FILE = 500_000


def main() -> None:
    """Measure every stage, or do one of them in this process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--documents", type=int, default=10_000_000)
    parser.add_argument("--shards", type=int, default=20)
    parser.add_argument("--normalisation", default="rank")
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    source = arguments.folder / "source"
    score = {"name": "edu", "kind": "column", "column": "edu"}
    score["normalisation"] = arguments.normalisation
    settings = {
        "source": {"path": str(source)},
        "plan": {"rows_per_shard": arguments.documents // arguments.shards},
        "quality": {"scores": [score]},
        "embedding": {"method": "lexical"},
    }
    parsed = parse_settings(settings)
    if arguments.stage:
        do_stage(arguments.folder / "run", arguments.stage, parsed)
        return
    if not source.exists():
        _write(source, arguments.documents)
    print_stages("benchmarks.quality_stages", arguments.folder / "run", parsed)


def print_stages(module: str, root: Path, settings: Settings) -> None:
    """A table of what each stage up to `quality` costs; *module* does one with `--stage`."""
    shutil.rmtree(root, ignore_errors=True)
    print("| stage | each | seconds | CPU seconds | peak memory | disk |")
    print("|:--|:--|--:|--:|--:|--:|")
    stages = stages_of(settings)
    for stage in ("plan", *stages[: stages.index("quality") + 1]):
        start = time.perf_counter()
        again = [sys.executable, "-m", module, *sys.argv[1:], "--stage", stage]
        said = subprocess.run(again, check=True, capture_output=True, text=True).stdout
        found = json.loads(said.splitlines()[-1])
        seconds = time.perf_counter() - start
        known = STAGES.get(stage)
        path = root / (known.file or stage if known else "plan.parquet")
        files = [path] if path.is_file() else list(path.glob("*"))
        size = sum(file.stat().st_size for file in files)
        print(
            f"| {stage} | {known.each if known else 'run'} | {seconds:.1f} | {found['cpu']:.1f} | "
            f"{found['memory'] / 2**30:.2f} GiB | {size / 1e6:.1f} MB |",
            flush=True,
        )


def do_stage(root: Path, stage: str, settings: Settings) -> None:
    """Do one stage in this process, and print its CPU seconds and peak memory in bytes."""
    compute = Compute(duckdb_memory="1GB")
    if stage == "plan":
        plan_run(root, settings, compute)
    else:
        run_stage(open_run(root), stage, compute)
    used = os.times()
    status = Path("/proc/self/status").read_text()  # `ru_maxrss` includes the parent's
    memory = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]
    print(json.dumps({"cpu": used.user + used.system, "memory": memory}))


def _write(source: Path, documents: int) -> None:
    source.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for first in range(0, documents, ROWS_PER_FILE):
        rows = np.arange(first, min(first + ROWS_PER_FILE, documents))
        texts = np.where(generator.random(len(rows)) < 0.1, rows // 20, rows + documents)
        table = pa.table(
            {
                "id": [f"<urn:uuid:{row:032x}>" for row in rows],
                "text": [f"text {text}" for text in texts],
                "edu": generator.normal(size=len(rows)),
            }
        )
        name = f"{first // ROWS_PER_FILE:05d}.parquet"
        pq.write_table(table, source / name, row_group_size=5_000)


if __name__ == "__main__":
    main()
