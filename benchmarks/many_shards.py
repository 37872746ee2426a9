"""Time of `datamask status` on a run of many shards, most of whose files are there.

The plan is a real one. Of the first stages, each shard has a small file with the receipt that is
due, and a record; the command reads as many footers as for a run of that many large shards.

    python -m benchmarks.many_shards [--shards 20000]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa

from benchmarks.orchestration import ROWS_PER_SHARD, write_source
from datamask.config.loading import parse_settings
from datamask.planning.plan import plan_run
from datamask.runs.files import write_parquet
from datamask.runs.receipt import Receipt
from datamask.runs.records import WorkRecord
from datamask.runs.run import Run

STAGES = ("scores", "quality", "embeddings", "selection")
TABLE = pa.table({"chunk_id": ["document"]})


def main() -> None:
    """Make the run, then time the command three times."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shards", type=int, default=20_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = _run(Path(folder), arguments.shards)
        for _ in range(3):
            before, start = os.times(), time.perf_counter()
            command = [sys.executable, "-m", "datamask.cli.main", "status", run.address]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            seconds, after = time.perf_counter() - start, os.times()
            used = after.children_user - before.children_user
            used += after.children_system - before.children_system
            print(f"{run.num_shards} shards: {seconds:.2f} s, {used:.2f} s of CPU", flush=True)


def _run(folder: Path, shards: int) -> Run:
    write_source(folder / "source", shards)
    source = {"path": str(folder / "source"), "layout": "features"}
    settings = {"source": source, "plan": {"rows_per_shard": ROWS_PER_SHARD}}
    run = plan_run(folder / "run", parse_settings(settings))
    for stage in STAGES:
        for unit in range(run.num_shards):
            _write(run, stage, unit)
    return run


def _write(run: Run, stage: str, unit: int) -> None:
    """A small file of a shard, with the receipt that is due, and its record."""

    def receipt(rows: int) -> Receipt:
        return run.make_receipt(stage, unit, rows, {"documents": ROWS_PER_SHARD})

    write_parquet(run.local_path(stage, unit), TABLE.schema, [TABLE], receipt)
    path = run.work_record_path(stage, unit)
    path.parent.mkdir(parents=True, exist_ok=True)
    metrics = {"documents": float(ROWS_PER_SHARD), "seconds": 1.0}
    record = WorkRecord(run.fingerprint(stage, unit), 1, 1.0, metrics)
    path.write_text(json.dumps(asdict(record)), encoding="utf-8")


if __name__ == "__main__":
    main()
