"""Time and memory of one threshold over many documents, and of their repeats.

    python -m benchmarks.global_cut [--documents 100000000] [--shards 100] [--memory 1GB]

Stage `threshold` on files like those of a run, of which a fifth of the documents were dropped: with
a budget of documents, of tokens, and a cap for each of 1,000 groups. The last case is stage
`repeats`: training sees all documents, at most four times, twice on average.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datamask.config.compute import Compute
from datamask.config.loading import parse_settings
from datamask.runs.files import write_parquet
from datamask.runs.opening import run_storage
from datamask.runs.receipt import Receipt, read_receipt
from datamask.runs.run import Run
from datamask.selection.documents import read_ranked, read_survivors
from datamask.selection.repeats import last_exposure, repeat_column
from datamask.selection.threshold import cut
from datamask.storage.duckdb_scratch import execute_with, temporary_duckdb

REPEATS = "repeats"
CASES: dict[str, dict[str, Any]] = {
    "documents": {},
    "tokens": {"tokens": 1},
    "documents, a cap for each of 1,000 domains": {"limits": [{"column": "domain", "cap": 0.002}]},
    REPEATS: {"max_repeat": 4, "training_documents": 1},
}


class Files(Run):
    """The files that stage `threshold` reads, without the stages that make them."""

    num_shards = property(lambda run: len(list((run.root / "learning").iterdir())))
    num_documents = property(lambda run: run.receipt("quality", 0).metrics["documents"])

    def receipt(self, stage: str, unit: int = 0) -> Receipt:
        """Whatever its fingerprint."""
        return read_receipt(self.path(stage, unit))

    def make_receipt(
        self, stage: str, unit: int, rows: int, metrics: dict[str, Any] | None = None
    ) -> Receipt:
        """With no fingerprint."""
        return Receipt(stage, unit, "", rows, metrics or {})


def write_shard(run: Run, shard: int, rows: int, documents: int) -> None:
    """Write *rows* documents, some with the same logit, and a quarter as many dropped ones."""
    generator = np.random.default_rng(shard)
    logit = generator.normal(generator.normal(), 3, rows).astype(np.float32)
    logit[: rows // 100] = 2.5
    every = rows + rows // 4
    is_dropped = np.arange(every) % 5 == 4
    ids = pa.array([f"<urn:uuid:{shard:08x}-{row:012x}>" for row in range(every)])
    rest = {"id": ids, "row": np.arange(every)}
    tokens = generator.integers(50, 2000, every)
    domain = pa.array(generator.integers(0, 1000, every)).cast(pa.string())
    quality = {
        "quality": generator.normal(size=every),
        "dropped": pc.if_else(pa.array(is_dropped), "pruned", pa.scalar(None, pa.string())),
    }
    metrics = dict.fromkeys(("centre", "kept_before", "tokens", "tokens_before"), 0)
    metrics |= {"unit": 1, "kept": rows, "kept_total": documents, "documents": documents * 5 // 4}
    metrics["tokens_total"] = 1000 * documents
    tables = {
        "learning": pa.table({"logit": logit}),
        "quality": pa.table({**rest, **quality}),
        "scores": pa.table({**rest, "tokens": tokens, "domain": domain}),
    }
    for stage, table in tables.items():
        receipt = partial(run.make_receipt, stage, shard, metrics=metrics)
        write_parquet(run.local_path(stage, shard), table.schema, [table], receipt)


def measure(name: str, folder: str, compute: Compute, documents: int) -> None:
    """Run one case in its own process and print its table row."""
    chosen = dict(CASES[name])
    if "tokens" in chosen:
        chosen["tokens"] = documents // 10 * 1000
    settings = {"source": {"path": folder}, "selection": {"scope": "corpus", **chosen}}
    settings["selection"] |= {} if "tokens" in chosen else {"documents": documents // 10}
    run = Files(run_storage(Path(folder)), parse_settings(settings))
    start = time.perf_counter()
    if name == REPEATS:
        kept, over = _repeat(run, compute, documents)
    else:
        cut(run, compute)
        found = run.receipt("threshold").metrics
        kept, over = sum(found["selected"]), found["units"] - found["budget"]
    seconds, used = time.perf_counter() - start, os.times()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"| {name} | {seconds:.0f} s | {used.user + used.system:.0f} s | {peak:.1f} GiB | "
        f"{kept:,} | {over:,} |",
        flush=True,
    )


def _repeat(run: Run, compute: Compute, documents: int) -> tuple[int, int]:
    """Documents, and how many more training sees than it should."""
    with temporary_duckdb(run.root, compute) as connection:
        connection.execute(
            "CREATE TABLE chosen (logit FLOAT, quality DOUBLE, id VARCHAR, units BIGINT)"
        )
        for shard in range(run.num_shards):
            kept = read_ranked(run, "learning", read_survivors(run, shard), in_tokens=False)
            execute_with(connection, kept, "INSERT INTO chosen FROM arriving")
        connection.execute("CREATE VIEW kept AS SELECT *, 4 AS most FROM chosen")
        repeat = repeat_column(last_exposure(connection, 4, documents), 4)
        query = f"SELECT count(*), sum({repeat})::BIGINT FROM kept"
        kept, seen = connection.execute(query).fetchall()[0]
    return kept, seen - 2 * documents


def main() -> None:
    """Write the shards, then measure every case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=100_000_000)
    parser.add_argument("--shards", type=int, default=100)
    parser.add_argument("--memory", default="1GB", help="DuckDB's limit")
    parser.add_argument("--workers", type=int, default=2, help="shards that are read at once")
    parser.add_argument("--case", choices=CASES, action="append", help="only these cases")
    parser.add_argument("--folder", type=Path, help="where shards are kept, and DuckDB spills")
    arguments = parser.parse_args()
    rows = arguments.documents // arguments.shards // 4 * 4
    compute = Compute(duckdb_memory=arguments.memory, workers=arguments.workers)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        run = Files(run_storage(Path(folder)), parse_settings({"source": {"path": folder}}))
        for shard in range(arguments.shards):
            write_shard(run, shard, rows, rows * arguments.shards)
        print("| budget | total | CPU | peak memory | documents kept | beyond budget |")
        print("|:--|--:|--:|--:|--:|--:|")
        for name in arguments.case or CASES:
            process = multiprocessing.get_context("spawn").Process(
                target=measure, args=(name, folder, compute, rows * arguments.shards)
            )
            process.start()
            process.join()


if __name__ == "__main__":
    main()
