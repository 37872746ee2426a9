"""Time and memory of one threshold over many documents, and of their repeats.

    python -m benchmarks.global_cut [--documents 100000000] [--memory 6GB]

Logits and quality by shard, as in the files of a run, go through the code of stage `threshold`
(DuckDB, out of core): with a budget of documents, of tokens, and a cap for each of 1,000 groups.
The last case is stage `repeats`: training sees all documents, at most four times, twice on average.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datamask.config.compute import Compute
from datamask.config.selection import Limit, Selection
from datamask.selection.repeats import last_exposure, repeat_column
from datamask.selection.threshold import cut_table
from datamask.storage.duckdb_scratch import temporary_duckdb

ROWS_PER_SHARD = 1_000_000
REPEATS = "repeats"
CASES = {
    "documents": Selection(scope="corpus"),
    "tokens": Selection(scope="corpus", tokens=1),
    "documents, a cap for each of 1,000 domains": Selection(
        scope="corpus", limits=(Limit(column="domain", cap=0.002),)
    ),
    REPEATS: Selection(max_repeat=4, training_documents=1),
}


def write_shard(folder: Path, shard: int) -> None:
    """Write a million rows: id, logit (some equal), quality, tokens, domain."""
    generator = np.random.default_rng(shard)
    logit = generator.normal(generator.normal(), 3, ROWS_PER_SHARD).astype(np.float32)
    logit[: ROWS_PER_SHARD // 100] = 2.5
    table = pa.table(
        {
            "id": [f"<urn:uuid:{shard:08x}-{row:012x}>" for row in range(ROWS_PER_SHARD)],
            "logit": logit,
            "quality": generator.normal(size=ROWS_PER_SHARD),
            "tokens": generator.integers(50, 2000, ROWS_PER_SHARD),
            "domain": pa.array(generator.integers(0, 1000, ROWS_PER_SHARD)).cast(pa.string()),
        }
    )
    pq.write_table(table, folder / f"{shard:05d}.parquet")


def measure(name: str, folder: str, memory: str, documents: int) -> None:
    """Run one case in its own process and print its table row."""
    selection = CASES[name]
    unit = "tokens" if selection.tokens else "1"
    group = "domain" if selection.limits else "NULL"
    start = time.perf_counter()
    with temporary_duckdb(Path(folder), Compute(duckdb_memory=memory)) as connection:
        connection.execute(
            "CREATE TABLE candidates (shard INTEGER, name VARCHAR, logit FLOAT, quality DOUBLE, "
            "id VARCHAR, units BIGINT)"
        )
        for shard, path in enumerate(sorted(Path(folder).glob("*.parquet"))):
            connection.execute(
                f"INSERT INTO candidates SELECT {shard}, {group}, logit, quality, id, {unit} "
                "FROM read_parquet(?)",
                [str(path)],
            )
        loaded = time.perf_counter() - start
        total = documents // 10 * (1000 if selection.tokens else 1)
        if name == REPEATS:
            total = documents
            connection.execute("CREATE VIEW kept AS SELECT * FROM candidates")
            repeat = repeat_column(last_exposure(connection, selection.max_repeat, total), 4)
            kept, seen = connection.execute(
                f"SELECT count(*), sum({repeat})::BIGINT FROM kept"
            ).fetchone()
            over = seen - 2 * total
        else:
            over = sum(row["units"] for row in cut_table(connection, selection, total)) - total
            kept = connection.execute("SELECT count(*) FROM kept").fetchone()[0]
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"| {name} | {loaded:.0f} s | {seconds:.0f} s | {peak:.1f} GiB | {kept:,} | {over:,} |",
        flush=True,
    )


def main() -> None:
    """Write the shards, then measure every case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=100_000_000)
    parser.add_argument("--memory", default="6GB", help="DuckDB's limit")
    parser.add_argument("--case", choices=CASES, action="append", help="only these cases")
    parser.add_argument("--folder", type=Path, help="where shards are kept, and DuckDB spills")
    arguments = parser.parse_args()
    shards = -(-arguments.documents // ROWS_PER_SHARD)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for shard in range(shards):
            write_shard(Path(folder), shard)
        print("| budget | loaded after | in all | peak memory | documents kept | beyond budget |")
        print("|:--|--:|--:|--:|--:|--:|")
        for name in arguments.case or CASES:
            process = multiprocessing.get_context("spawn").Process(
                target=measure,
                args=(name, folder, arguments.memory, shards * ROWS_PER_SHARD),
            )
            process.start()
            process.join()


if __name__ == "__main__":
    main()
