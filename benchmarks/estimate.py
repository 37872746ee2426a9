"""Accuracy of the estimate: run 3 shards, predict 20, run 20, compare.

The estimate and the run are separate processes with the same settings, one worker and one thread.
Because the machine may be shared, CPU seconds are compared as well as seconds, and estimate and run
are repeated; the minimum counts.

    python -m benchmarks.estimate                      # lexical embeddings
    python -m benchmarks.estimate --hidden 64          # a small transformer with random weights
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

SHARDS = 20

RUN = """
import json, os, sys, time
from pathlib import Path
from typing import Any
from datamask.config.loading import load_settings
from datamask.execution.pipeline import run_stage
from datamask.runs.stages import stages_of
from datamask.planning.plan import plan_run
settings, compute = load_settings(None, tuple(sys.argv[2:]))
root, found = Path(sys.argv[1]), {}
def measured(stage, work):
    start, used = time.perf_counter(), time.process_time()
    made = work()
    found[stage] = (time.perf_counter() - start, time.process_time() - used)
    return made
run = measured("plan", lambda: plan_run(root, settings, compute))
for stage in stages_of(settings):
    measured(stage, lambda: run_stage(run, stage, compute))
found["total"] = tuple(map(sum, zip(*found.values())))
disk = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
print(json.dumps({"stages": found, "disk": disk}))
"""


def main() -> None:
    """Create the source, estimate, run, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1000, help="documents per shard")
    parser.add_argument("--hidden", type=int, default=0, help="width of a transformer; 0: lexical")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--corpus", type=Path, default=Path("runs/demo-corpus"))
    parser.add_argument("--set", action="append", default=[], help="a setting, as for datamask")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        items = _settings(folder, arguments)
        estimates = [_estimate(folder, items) for _ in range(arguments.repeats)]
        runs = [_run(folder / f"run-{n}", items) for n in range(arguments.repeats)]
    print(f"{SHARDS} shards of {arguments.rows} documents: {' '.join(items[1:])}\n")
    print("| stage | seconds: estimated | taken | CPU seconds: estimated | taken | difference |")
    print("|:--|--:|--:|--:|--:|--:|")
    for stage in estimates[0]:
        seconds = min(one[stage]["seconds"] for one in estimates)
        cpu = min(one[stage]["cpu_seconds"] for one in estimates)
        taken = [min(run["stages"][stage][place] for run in runs) for place in (0, 1)]
        difference = f"{cpu / taken[1] - 1:+.0%}" if taken[1] > 0.01 else ""
        print(
            f"| {stage} | {seconds:.1f} | {taken[0]:.1f} | {cpu:.1f} | {taken[1]:.1f} "
            f"| {difference} |"
        )
    disk = estimates[0]["total"]["disk_bytes"] / runs[0]["disk"] - 1
    print(f"\ndisk: estimated {disk:+.0%}")


def _settings(folder: Path, arguments: argparse.Namespace) -> list[str]:
    """The source and the settings of a run of some shards."""
    from examples.demo_corpus import write_corpus

    if not arguments.corpus.exists():
        write_corpus(arguments.corpus)
    table = pq.read_table(arguments.corpus)
    (folder / "source").mkdir()
    for shard in range(SHARDS):
        part = table.slice(shard * arguments.rows, arguments.rows)
        assert part.num_rows == arguments.rows, "the corpus is too small"
        pq.write_table(part, folder / "source" / f"{shard:05d}.parquet")
    items = [f"source.path={folder / 'source'}", f"plan.rows_per_shard={arguments.rows}"]
    if arguments.hidden:
        from benchmarks.models import random_bert

        texts = table["text"].to_pylist()
        model = random_bert(folder / "model", texts, hidden=arguments.hidden, layers=2)
        items += [f"embedding.model={model}", f"embedding.dimension={arguments.hidden}"]
    else:
        items.append("embedding.method=lexical")
    return [*items, "compute.device=cpu", *arguments.set]


def _python(*arguments: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, check=True, text=True, stdout=subprocess.PIPE, env=environment
    ).stdout


def _estimate(folder: Path, items: list[str]) -> dict[str, dict[str, float]]:
    arguments = [part for item in items for part in ("--set", item)]
    arguments += ["--estimate", "--format", "json"]
    printed = _python("-m", "datamask.cli.main", "-q", "plan", str(folder / "none"), *arguments)
    rows = [json.loads(line) for line in printed.splitlines()]
    return {row["stage"]: row for row in rows}


def _run(root: Path, items: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_python("-c", RUN, str(root), *items).splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
