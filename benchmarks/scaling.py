"""Scaling: measured with one and two workers on this machine, and simulated for a cluster.

    python -m benchmarks.scaling measure     # 8 minutes; writes results/scaling.json
    python -m benchmarks.scaling simulate    # from that file; writes results/scaling.md

`measure` learns masks with one worker, then twice as many with two workers, as parts on Prefect's
workers and as tasks on Ray, and records the cost of a task and of starting a part. `simulate`
distributes 20,000 shards of a million documents over 384 workers with these costs. Its task times
have the measured spread around the time of such a shard.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import scheduler
from benchmarks.scale import clustered, schema
from datamask.config.compute import Compute
from datamask.config.loading import parse_settings
from datamask.execution.pipeline import run_stage
from datamask.planning.plan import plan_run
from datamask.runs.files import write_parquet
from datamask.runs.opening import open_run
from datamask.runs.run import Run
from tests.flows.server import REPOSITORY, Server

RESULTS = Path(__file__).parent / "results"
ROWS, SHARDS_EACH, TASKS = 10_000, 6, 200
SHARDS, DOCUMENTS, WORKERS = 20_000, 1_000_000, 384
SHARD_SECONDS = 86
"""What the mask of a million documents takes on one core (the section on a large run)."""
POLL_SECONDS = 2.0
"""How often a parent looks at its parts (flows/orchestration/partitions.py)."""
PART = 0.25
"""Seconds between parts that a parent asks for, as a server on the same 2 cores noted them."""
SERVER_TASKS = 25
"""Task runs that a server on 2 cores records per second (the section on orchestration)."""


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=["measure", "simulate", "learn", "tasks"])
    parser.add_argument(
        "parameters", nargs="?", help="`learn`: of the flow, as JSON; `tasks`: the engine"
    )
    arguments = parser.parse_args()
    if arguments.action == "learn":
        from flows.stages import learn_masks

        state: Any = learn_masks(**json.loads(arguments.parameters), return_state=True)
        assert state.is_completed()
    elif arguments.action == "tasks":
        print(json.dumps(cost_of_tasks(arguments.parameters)))
    else:
        (measure if arguments.action == "measure" else simulate)()


def measure() -> None:
    """Measure on this machine and write results/scaling.json."""
    os.environ["OMP_NUM_THREADS"] = "1"
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ready = {workers: _prepare(folder, workers) for workers in (1, 2)}
        cpus = os.cpu_count() or 1
        cases: dict[str, tuple[Run, dict[str, Any], int]] = {
            "prefect, 1 worker": (ready[1], {}, 1),
            "prefect, 2 workers": (ready[2], {}, 2),
            "ray, 1 worker": (ready[1], {"engine": "ray", "task_cpus": cpus}, 1),
            "ray, 2 workers": (ready[2], {"engine": "ray", "task_cpus": cpus / 2}, 1),
        }
        server = Server(folder / "services", gpu_workers=2)
        try:
            server.start()
            server.deploy()
            for case, (run, compute, partitions) in cases.items():
                root = folder / case
                shutil.copytree(run.root, root)
                parameters = {"root": str(root), "partitions": partitions}
                parameters |= {"compute": compute}
                begun = time.time()
                command = [sys.executable, "-m", "benchmarks.scaling", "learn"]
                command.append(json.dumps(parameters))
                subprocess.run(command, check=True, env=server.environment, cwd=REPOSITORY)
                found[case] = _times(root, begun)
                print(case, {key: found[case][key] for key in ("seconds", "start")}, flush=True)
            for engine in ("threads", "ray"):
                command = [sys.executable, "-m", "benchmarks.scaling", "tasks", engine]
                told = subprocess.run(
                    command,
                    check=True,
                    env=server.environment,
                    cwd=REPOSITORY,
                    stdout=subprocess.PIPE,
                )
                found[engine] = json.loads(told.stdout.splitlines()[-1])
                print(engine, found[engine], flush=True)
        finally:
            server.stop()
    (RESULTS / "scaling.json").write_text(json.dumps(found) + "\n")


def _prepare(folder: Path, workers: int) -> Run:
    """A run in which only the masks are missing."""
    rows = ROWS * SHARDS_EACH * workers
    source = folder / f"{workers}.parquet"
    write_parquet(source, schema(), clustered(rows))
    return _ready(folder / f"ready-{workers}", source, ROWS, {"ratio": 0.1})


def _ready(root: Path, source: Path, rows: int, selection: dict[str, Any]) -> Run:
    settings = {
        "source": {"path": str(source), "layout": "features"},
        "plan": {"rows_per_shard": rows},
        "selection": selection,
    }
    run = plan_run(root, parse_settings(settings))
    for stage in ("scores", "quality", "embeddings"):
        run_stage(run, stage, Compute(workers=2))
    return run


def _times(root: Path, begun: float) -> dict[str, Any]:
    run = open_run(root)
    paths = [run.record_path("selection", shard) for shard in range(run.num_shards)]
    seconds = [json.loads(path.read_text())["work"]["seconds"] for path in paths]
    ends = sorted(path.stat().st_mtime for path in paths)
    first = min(path.stat().st_mtime - took for path, took in zip(paths, seconds, strict=True))
    return {
        "seconds": round(ends[-1] - first, 3),
        "start": round(first - begun, 3),
        "selection": seconds,
    }


def cost_of_tasks(name: str) -> dict[str, float]:
    """CPU seconds per empty task, which are insensitive to other load on the machine.

    Returns:
        `submission` of the flow run's process and `task` of the worker's process.
    """
    from prefect import flow, task

    from flows.orchestration.task_runners import task_runner

    @task
    def nothing() -> tuple[int, float]:
        return os.getpid(), time.process_time()

    @flow
    def many() -> tuple[float, list[tuple[int, float]]]:
        compute = parse_settings({"engine": name, "device": "cpu"}, Compute)
        with task_runner("scores", Path.cwd(), compute) as (runner, _):
            runner.submit(nothing, {}).result()
            before, told, pending = time.process_time(), [], []
            for _ in range(TASKS):
                pending.append(runner.submit(nothing, {}))
                if len(pending) >= 4:
                    told.append(pending.pop(0).result())
            told += [future.result() for future in pending]
            return (time.process_time() - before) / TASKS, told

    own, told = many()
    if name == "threads":
        return {"submission": 0.0, "task": own}
    by_process: dict[int, list[float]] = {}
    for process, seconds in told:
        by_process.setdefault(process, []).append(seconds)
    spent = sum(max(times) - min(times) for times in by_process.values())
    return {"submission": own, "task": spent / max(TASKS - len(by_process), 1)}


def simulate() -> None:
    """Simulate the shards of a large corpus on a cluster and write results/scaling.md."""
    found = json.loads((RESULTS / "scaling.json").read_text())
    lines = [_measured(found), ""]
    alone = found["prefect, 1 worker"]["selection"]
    start = found["prefect, 2 workers"]["start"]
    part_cost, ray_cost = found["threads"], found["ray"]
    parts = scheduler.Costs(task=part_cost["task"], start=start, part=PART, notice=POLL_SECONDS)
    queue = scheduler.Costs(**ray_cost, start=found["ray, 2 workers"]["start"])
    generator = random.Random(0)
    stretch = SHARD_SECONDS / statistics.mean(alone)
    drawn = [stretch * generator.choice(alone) for _ in range(SHARDS)]
    lines += [
        f"{SHARDS:,} shards of {DOCUMENTS:,} documents on {WORKERS} workers; a mask takes "
        f"{statistics.mean(drawn):.0f} s ({min(drawn):.0f} to {max(drawn):.0f}). A task costs its "
        f"worker {1000 * part_cost['task']:.0f} ms in a part, which works {start:.0f} s after it "
        f"was asked for; with Ray {1000 * ray_cost['task']:.0f} ms, and the flow run that hands "
        f"it out {1000 * ray_cost['submission']:.0f} ms.",
        "",
        "| shards | engine | shards a task | tasks a second | hours | idle | orchestration |",
        "|:--|:--|--:|--:|--:|--:|--:|",
    ]
    for scale, label in (
        (1.0, "86 s"),
        (0.1, "8.6 s"),
        (0.01, "0.86 s"),
    ):
        seconds = [scale * one for one in drawn]
        for engine, deal, costs, sizes in (
            ("parts", scheduler.in_parts, parts, (1, 10)),
            ("Ray", scheduler.in_a_queue, queue, (1, 10)),
        ):
            for size in sizes:
                done = deal(seconds, WORKERS, size, costs)
                free = deal(seconds, WORKERS, size, scheduler.Costs())
                rate = SHARDS / size / done.seconds
                shown = f"{rate:.1f}{' (too many)' if rate > SERVER_TASKS else ''}"
                lines.append(
                    f"| {label} | {engine} | {size} | {shown} | {done.seconds / 3600:.2f} | "
                    f"{done.lost:.1%} | {1 - free.seconds / done.seconds:.1%} |"
                )
    text = "\n".join(lines) + "\n"
    (RESULTS / "scaling.md").write_text(text)
    print(text)


def _measured(found: dict[str, Any]) -> str:
    lines = [
        "| engine | workers | masks | seconds | until the first begins | a mask | efficiency |",
        "|:--|--:|--:|--:|--:|--:|--:|",
    ]
    for engine in ("prefect", "ray"):
        for workers in (1, 2):
            case = found[f"{engine}, {workers} worker{'s' if workers > 1 else ''}"]
            one = found[f"{engine}, 1 worker"]["seconds"]
            lines.append(
                f"| {engine} | {workers} | {len(case['selection'])} | {case['seconds']:.1f} | "
                f"{case['start']:.1f} | {statistics.mean(case['selection']):.2f} | "
                f"{one / case['seconds']:.0%} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
