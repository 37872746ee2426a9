"""What a run costs beside a script that only takes the best by score: CPU seconds and peak memory.

A run with `method: top_quality` and a score column learns nothing, so all of its time is the
pipeline's: planning, checks, checksums, receipts, composition and report. The script, of polars,
normalises the score to ranks and writes the best tenth. Both select the same documents, and neither
needs vectors. Each command is a process of its own and pays its imports.

    python -m benchmarks.overhead FOLDER [--documents 50000 1000000]

With `--texts`, the run has the default method and lexical vectors, and the score is the built-in
heuristic. The script (`benchmarks.neighbour_script`) also drops the worse half, embeds the rest in
the same way, and covers it by lists of nearest documents, in blocks of 10,000 and of 25,000; it
gets the run's scales. Further lines say how good the selections are: mean quality, and the mean
largest cosine of documents to them.

    python -m benchmarks.many_texts runs/many --rows 100000
    python -m benchmarks.overhead FOLDER --texts runs/many/texts --documents 10000 50000
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.learner import coverage
from datamask.embedding.vectors import read_vectors
from datamask.quality.heuristic import heuristic_scores
from datamask.runs.opening import open_run
from datamask.runs.run import Run

SETTINGS = """
source: {{path: {source}, columns: {{id: chunk_id}}}}
quality:
  duplicates: keep
  scores: [{{name: edu, kind: column, column: edu, normalisation: rank}}]
  prune_fraction: 0
selection: {{method: top_quality}}
"""

DEFAULT = """
source: {{path: {source}}}
quality: {{scores: [{{name: edu, kind: column, column: edu, normalisation: rank}}]}}
embedding: {{method: lexical}}
"""

JUDGED, DRAWS = 16_384, 4
"""Documents whose largest cosines are judged, and random selections beside them."""
BLOCKS = (10_000, 25_000)

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
    """Measure a run, its relaunch, its report and the script, for each number of documents."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--documents", type=int, nargs="+", default=[50_000, 1_000_000])
    parser.add_argument("--texts", type=Path, help="Parquet files with id and text")
    parser.add_argument("--repeats", type=int, default=1, help="of which the least counts")
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
            if arguments.texts:
                write_scored(arguments.texts, source, documents)
            else:
                measured([*python, WRITE, str(source), str(documents)])
        config = arguments.folder / "overhead.yaml"
        settings = DEFAULT if arguments.texts else SETTINGS
        config.write_text(settings.format(source=source.absolute()))
        line = partial(print_line, documents, arguments.repeats)
        rebuild = [*datamask, "rebuild", str(run), "--config", str(config)]
        whole = line("rebuild", rebuild, new=run)
        relaunch = line("relaunch", [*datamask, "rebuild", str(run)])
        report = line("report", [*datamask, "report", str(run)])
        if not arguments.texts:
            apart = whole - report + relaunch
            print(f"| {documents:,d} | rebuild without its report | {apart:.1f} | |", flush=True)
            line("script", [*python, SCRIPT, str(source), str(best)])
            measured([*python, SAME, str(run), str(best)])
            continue
        script = [sys.executable, "-m", "benchmarks.neighbour_script", str(source)]
        weights = ["--weights", *map(str, weights_of(open_run(run)))]
        for block in BLOCKS:
            out = f"{best}-{block}"
            line(f"script, {block:,}", [*script, out, *weights, "--block", str(block)])
        print(compared(open_run(run), best), flush=True)


def print_line(
    documents: int, repeats: int, name: str, command: list[str], new: Path | None = None
) -> float:
    """Print the least CPU seconds of a command, and return them; the folder *new* is made anew."""
    taken = []
    for _ in range(repeats):
        if new is not None:
            shutil.rmtree(new, ignore_errors=True)
        taken.append(measured(command))
    seconds, memory = min(taken)
    print(f"| {documents:,d} | {name} | {seconds:.1f} | {memory:.2f} GiB |", flush=True)
    return seconds


def write_scored(texts: Path, source: Path, documents: int) -> None:
    """Write the first of some texts with the score `edu`."""
    table = pq.read_table(texts, columns=["id", "text"])[:documents]
    scores = heuristic_scores(table["text"].to_pylist())[0]
    source.mkdir(parents=True)
    pq.write_table(table.append_column("edu", pa.array(scores)), source / "00000.parquet")


def weights_of(run: Run) -> tuple[float, float]:
    """The weights of quality and of coverage in a run's one shard, each divided by its scale."""
    receipt: dict[str, Any] = run.receipt("selection", 0).metrics
    weight, scales = run.settings.selection.quality_weight, receipt["scales"]
    return weight / scales["quality"], (1 - weight) / scales["facility_location"]


def compared(run: Run, best: Path) -> str:
    """Quality and coverage of the run's selection, the script's, and random documents."""
    path = run.path("embeddings", 0)
    ids = pq.read_table(path, columns=["chunk_id"])["chunk_id"].to_numpy()
    vectors = read_vectors(path, run.settings.embedding.dimension)
    scores = pq.read_table(run.path("quality", 0), columns=["id", "quality"])
    quality = dict(zip(scores["id"].to_pylist(), scores["quality"].to_pylist(), strict=True))
    qualities = np.array([quality[name] for name in ids])
    ours = pq.read_table(run.root / "subset", columns=["id"])["id"].to_numpy()

    def judged(some: np.ndarray) -> np.ndarray:
        return np.array([qualities[some].mean(), coverage(vectors, some, JUDGED)])

    generator = np.random.default_rng(3)
    draws = [generator.permutation(len(ids))[: len(ours)] for _ in range(DRAWS)]
    chance = np.mean([judged(rows) for rows in draws], axis=0)
    lines = [f"random: quality {chance[0]:.4f}, coverage {chance[1]:.4f}"]
    gains: list[np.ndarray] = []
    chosen = {"run": run.root / "subset"} | {
        f"script, {block:,}": f"{best}-{block}" for block in BLOCKS
    }
    for name, file in chosen.items():
        rows = np.flatnonzero(np.isin(ids, pq.read_table(file, columns=["id"])["id"].to_numpy()))
        gain = judged(rows) - chance
        gains.append(np.append(gain, weights_of(run) @ gain))
        shares = ", ".join(f"{share:.3f}" for share in gains[-1] / gains[0])
        told = f"{len(rows):,} of {len(ids):,}, quality {gain[0]:+.4f}, coverage {gain[1]:+.4f}"
        lines.append(f"{name}: {told}; quality, coverage, objective by the run's: {shares}")
    return "\n".join(lines)


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
