"""Time to add up the lengths and domains of large shards, as stage `composition` does.

    python -m benchmarks.tallies FOLDER [--shards 60] [--memory 2GB]

A shard stands for a million documents: three quarters of their domains follow Zipf's law over 30
million domains, and a quarter is drawn evenly from these. The files are made once, in FOLDER.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datamask.analysis.composition import SELECTIONS, sum_tallies
from datamask.config.compute import Compute
from datamask.storage.duckdb_scratch import temporary_duckdb

DOCUMENTS, DOMAINS, LENGTHS = 1_000_000, 30_000_000, 5000


def write_shard(path: Path, shard: int) -> None:
    """Write the tallies of a shard: kind, name, characters, and a count for each selection."""
    generator = np.random.default_rng(shard)
    ranks = (DOMAINS ** generator.random(DOCUMENTS)).astype(np.int64)
    rare = generator.random(DOCUMENTS) < 0.25
    ranks[rare] = generator.integers(0, DOMAINS, rare.sum())
    domains = [f"www.site-{rank}.example" for rank in np.unique(ranks)]
    counts = generator.integers(0, 5, (len(SELECTIONS), len(domains) + LENGTHS))
    columns = {
        "kind": ["domain"] * len(domains) + ["length"] * LENGTHS,
        "name": [*domains, *[None] * LENGTHS],
        "characters": pa.array([None] * len(domains) + list(range(LENGTHS)), pa.int64()),
        **dict(zip(SELECTIONS, counts, strict=True)),
    }
    pq.write_table(pa.table(columns), path)


def main() -> None:
    """Print seconds, CPU seconds and memory."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shards", type=int, default=60)
    parser.add_argument("--memory", default="2GB", help="compute.duckdb_memory")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    paths = [arguments.folder / f"{shard:05d}.parquet" for shard in range(arguments.shards)]
    for shard, path in enumerate(paths):
        if not path.exists():
            write_shard(path, shard)
    compute = Compute(duckdb_memory=arguments.memory)
    with temporary_duckdb(arguments.folder, compute) as connection:
        start, used = time.perf_counter(), time.process_time()
        sum_tallies(connection, [str(path) for path in paths])
        seconds, used = time.perf_counter() - start, time.process_time() - used
        [(groups,)] = connection.execute("SELECT count(*) FROM tallies").fetchall()
    rows = sum(pq.read_metadata(path).num_rows for path in paths)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{len(paths)} shards, {rows:,d} rows, {groups:,d} groups: {seconds:.1f} s, "
        f"{used:.1f} s of CPU ({used / len(paths):.2f} per shard), {peak:.2f} GiB at most"
    )


if __name__ == "__main__":
    main()
