"""Time and memory of joining a score file to a corpus by id, at ids like FineWeb's.

Creates documents with ids of 47 characters, and Parquet files with their scores in another order.
Every thousandth document has no score, and as many scores have no document. Planning (which checks
ids and scores) and stage `file_scores` run in a process each; every joined value is compared with
the value that was written.

    python -m benchmarks.score_join --rows 10000000 --folder runs/score_join
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq

from datamask.config.compute import Compute
from datamask.config.loading import parse_settings
from datamask.execution.pipeline import run_stage
from datamask.planning.plan import plan_run
from datamask.runs.opening import open_run

SHARDS = FILES = 100
STRIDE = 7_919_001_001
"""Of the order of the scores; it has no factor in common with a power of ten."""
LEFT_OUT = 1000
PERIOD = 1_000_003
ID = "'<urn:uuid:' || md5({}::VARCHAR)::UUID || '>'"


def make(folder: Path, rows: int) -> None:
    """Write the documents and the scores."""
    for name in ("source", "scores"):
        (folder / name).mkdir(parents=True)
    group = min(100_000, rows // SHARDS)
    with duckdb.connect(config={"memory_limit": "2GB", "threads": 2}) as connection:
        for part in range(FILES):
            span = f"range({part * (rows // FILES)}, {(part + 1) * (rows // FILES)}) t(i)"
            place = f"(i * {STRIDE} % {rows})"
            unknown = f"CASE WHEN place % {LEFT_OUT} = 0 THEN -place - 1 ELSE place END"
            queries = {
                "source": f"SELECT {ID.format('i')} AS id, 'text' AS text FROM {span}",
                "scores": f"SELECT {ID.format(unknown)} AS id, (place % {PERIOD})::DOUBLE AS score "
                f"FROM (SELECT {place} AS place FROM {span})",
            }
            for name, query in queries.items():
                connection.execute(
                    f"COPY ({query}) TO '{folder / name}/{part:03d}.parquet' "
                    f"(COMPRESSION zstd, ROW_GROUP_SIZE {group})"
                )


def check(folder: Path, rows: int) -> int:
    """Compare every joined value with the one that was written; the number of missing ones."""
    run, missing = open_run(folder / "run"), 0
    for shard in range(run.num_shards):
        places = np.arange(run.shard_rows(shard)) + shard * (rows // SHARDS)
        expected = np.where(places % LEFT_OUT == 0, np.nan, places % PERIOD)
        found = pq.read_table(run.path("file_scores", shard))["edu"].to_numpy()
        assert np.array_equal(found, expected, equal_nan=True), shard
        missing += int(np.isnan(found).sum())
    return missing


def plan(folder: Path, rows: int, compute: Compute) -> None:
    """Plan a run, which checks ids and scores."""
    score = {"name": "edu", "kind": "file", "path": str(folder / "scores"), "missing": "drop"}
    settings = {
        "source": {"path": str(folder / "source")},
        "plan": {"rows_per_shard": rows // SHARDS},
        "quality": {"scores": [score]},
        "embedding": {"method": "lexical", "dimension": 8},
    }
    plan_run(folder / "run", parse_settings(settings), compute)


def join(folder: Path, rows: int, compute: Compute) -> None:
    """Make the files of the stage."""
    run_stage(open_run(folder / "run"), "file_scores", compute)


def measure(work: Callable[[Path, int, Compute], None], *given: Any) -> None:
    """Do one of these and print what it takes."""
    start = time.perf_counter()
    work(*given)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(
        f"{work.__name__}: {time.perf_counter() - start:.0f} s, CPU "
        f"{used.ru_utime + used.ru_stime:.0f} s, peak memory {used.ru_maxrss / 2**20:.2f} GiB",
        flush=True,
    )


def main() -> None:
    """Make the data, plan and join in processes of their own, and compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000, help="a power of ten, from 10⁵")
    parser.add_argument("--folder", type=Path, default=Path("runs/score_join"))
    parser.add_argument("--memory", default="4GB", help="compute.duckdb_memory")
    given = parser.parse_args()
    folder = given.folder / str(given.rows)
    if not folder.exists():
        make(folder, given.rows)
    for work in (plan, join):
        arguments = (work, folder, given.rows, Compute(duckdb_memory=given.memory))
        process = get_context("spawn").Process(target=measure, args=arguments)
        process.start()
        process.join()
    print(f"every value is right; {check(folder, given.rows)} documents have no score")


if __name__ == "__main__":
    main()
