"""What a run costs beside a script that only takes the best by score: CPU seconds and peak memory.

A run with `method: top_quality` and a score column learns nothing, so all of its time is the
pipeline's: planning, checks, checksums, receipts, composition and report. The script, of polars,
normalises the score to ranks and writes the best tenth. Both select the same documents, and neither
needs vectors. Each command is a process of its own and pays its imports.

    python -m benchmarks.overhead FOLDER [--documents 50000 1000000]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

SETTINGS = """
source: {{path: {source}, columns: {{id: chunk_id}}}}
quality:
  duplicates: keep
  scores: [{{name: edu, kind: column, column: edu, normalisation: rank}}]
  prune_fraction: 0
selection: {{method: top_quality}}
"""

SCRIPT = """
import sys, polars as pl
documents = pl.scan_parquet(sys.argv[1] + "/*.parquet")
rank = pl.col("edu").rank() / pl.len()
documents.with_columns(quality=rank).filter(rank > 0.9).sink_parquet(sys.argv[2])
"""

WRITE = """
import sys, numpy, pathlib, pyarrow as pa, pyarrow.parquet as pq
folder, documents = pathlib.Path(sys.argv[1]), int(sys.argv[2])
folder.mkdir(parents=True)
generator = numpy.random.default_rng(0)
words = numpy.array([f"word{number:04d}" for number in range(5000)])
for first in range(0, documents, 100_000):
    rows = range(first, min(first + 100_000, documents))
    angles = generator.normal(size=len(rows))
    vectors = numpy.stack([numpy.cos(angles), numpy.sin(angles)], 1).astype(numpy.float16)
    table = {
        "chunk_id": [f"<urn:uuid:{row:032x}>" for row in rows],
        "text": [" ".join(some) for some in generator.choice(words, (len(rows), 60))],
        "edu": generator.normal(size=len(rows)),
        "feature_arr": pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), 2),
    }
    name = folder / f"{first // 100_000:05d}.parquet"
    pq.write_table(pa.table(table), name, row_group_size=25_000)
"""

SAME = """
import sys, polars as pl
ours = pl.scan_parquet(sys.argv[1] + "/subset/**/*.parquet").select("chunk_id").collect()
theirs = pl.read_parquet(sys.argv[2], columns=["chunk_id"])
assert set(ours["chunk_id"]) == set(theirs["chunk_id"]), "other documents"
"""


def main() -> None:
    """Measure the script, a run, its relaunch and its report, for each number of documents."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--documents", type=int, nargs="+", default=[50_000, 1_000_000])
    arguments = parser.parse_args()
    # Users have byte code, whatever this process was told.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    python, datamask = [sys.executable, "-c"], [sys.executable, "-m", "datamask.cli.main", "-q"]
    measured([*datamask, "rebuild", "--help"])
    print("| documents | command | CPU seconds | peak memory |")
    print("|--:|:--|--:|--:|")
    for documents in arguments.documents:
        source = arguments.folder / f"source-{documents}"
        run, best = (arguments.folder / f"{name}-{documents}" for name in ("run", "best.parquet"))
        if not source.exists():
            measured([*python, WRITE, str(source), str(documents)])
        shutil.rmtree(run, ignore_errors=True)
        config = arguments.folder / "overhead.yaml"
        config.write_text(SETTINGS.format(source=source.absolute()))
        rows = {
            "script": [*python, SCRIPT, str(source), str(best)],
            "rebuild": [*datamask, "rebuild", str(run), "--config", str(config)],
            "relaunch": [*datamask, "rebuild", str(run)],
            "report": [*datamask, "report", str(run)],
        }
        seconds = {}
        for name, command in rows.items():
            seconds[name], memory = measured(command)
            cells = f"{documents:,d} | {name} | {seconds[name]:.1f} | {memory:.2f} GiB"
            print(f"| {cells} |", flush=True)
        apart = seconds["rebuild"] - seconds["report"] + seconds["relaunch"]
        print(f"| {documents:,d} | rebuild without its report | {apart:.1f} | |", flush=True)
        measured([*python, SAME, str(run), str(best)])


def measured(command: list[str]) -> tuple[float, float]:
    """CPU seconds and peak memory, in GiB, of a command in a process of its own."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command[-3:]}: exit status {process.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 2**20


if __name__ == "__main__":
    main()
