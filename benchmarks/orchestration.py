"""Cost of Prefect: many tiny shards with the command line, and with a real server and worker.

The same run is computed twice in new folders; the difference in time divided by the number of task
runs is the cost of orchestration. Every task run on the server must be in state Completed.

    python -m benchmarks.orchestration --shards 2000
    python -m benchmarks.orchestration --shards 2000 --database postgresql+asyncpg://me:secret@host/prefect
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.scale import clustered, schema
from datamask.runs.opening import open_run
from datamask.runs.stages import SHARD_STAGES, stages_of
from tests.flows.server import REPOSITORY, Server

ROWS_PER_SHARD = 5
SHARDS_PER_FILE = 100
PATIENCE_SECONDS = 1800


def main() -> None:
    """Create the input, run with and without Prefect, and print the times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=2, help="compute.workers of both runs")
    parser.add_argument("--database", default="", help="the server's; default SQLite")
    arguments = parser.parse_args()
    if arguments.database:
        os.environ["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = arguments.database
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        write_source(source, arguments.shards)
        settings: dict[str, dict[str, object]] = {
            "source": {"path": str(source), "layout": "features"},
            "plan": {"rows_per_shard": ROWS_PER_SHARD},
            "selection": {"ratio": 0.2, "steps": 2, "metric": "pairwise", "swap_refinement": 0},
            "compute": {"workers": arguments.workers},
        }
        alone = _by_command_line(Path(folder) / "alone", settings)
        print(f"command line              {alone:8.1f} s", flush=True)
        _through_server(Path(folder), settings, alone)


def write_source(folder: Path, shards: int) -> None:
    """Write a row group per shard, so that no shard reads rows of others."""
    folder.mkdir()
    table = pa.Table.from_batches(clustered(shards * ROWS_PER_SHARD), schema())
    rows = ROWS_PER_SHARD * SHARDS_PER_FILE
    for start in range(0, table.num_rows, rows):
        part = table.slice(start, rows)
        pq.write_table(part, folder / f"{start:08d}.parquet", row_group_size=ROWS_PER_SHARD)


def _by_command_line(root: Path, settings: dict[str, dict[str, object]]) -> float:
    command = [sys.executable, "-m", "datamask.cli.main", "--quiet", "rebuild", str(root)]
    for group, values in settings.items():
        for key, value in values.items():
            command += ["--set", f"{group}.{key}={value}"]
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def _through_server(folder: Path, settings: dict[str, dict[str, object]], alone: float) -> None:
    server, root = Server(folder / "services"), folder / "orchestrated"
    try:
        server.start()
        server.deploy()
        command = [sys.executable, "-m", "prefect", "deployment", "run", "rebuild/local", "--watch"]
        command += ["--param", f"root={root}"]
        for group, values in settings.items():
            command += ["--param", f"{group}={json.dumps(values)}"]
        start = time.perf_counter()
        subprocess.run(command, check=True, env=server.environment, cwd=REPOSITORY)
        seconds = time.perf_counter() - start
        run = open_run(root)
        stages = {"quality", *SHARD_STAGES}.intersection(stages_of(run.settings))
        assert not any(run.remaining(stage) for stage in stages)
        tasks = sum(run.num_units(stage) for stage in ("scores", "embeddings", "selection"))
        print(f"server and worker         {seconds:8.1f} s, {tasks} task runs of shards")
        print(f"orchestration             {1000 * (seconds - alone) / tasks:8.1f} ms a task run")
        states, lag = asyncio.run(_states(server.address, tasks))
        print(f"all known to the server   {lag:8.1f} s after the end: {dict(states)}")
        log = (server.folder / "server.log").read_text(errors="replace")
        print(f"'database is locked'      {log.count('database is locked'):8d} times in its log")
    finally:
        server.stop()
        shutil.rmtree(root, ignore_errors=True)


async def _states(address: str, expected: int) -> tuple[Counter[str], float]:
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL, temporary_settings

    start = time.perf_counter()
    with temporary_settings({PREFECT_API_URL: address}):
        async with get_client() as client:
            while True:
                states: Counter[str] = Counter()
                while page := await client.read_task_runs(limit=200, offset=states.total()):
                    states.update(run.state_name or "none" for run in page)
                lag = time.perf_counter() - start
                if states["Completed"] >= expected or lag > PATIENCE_SECONDS:
                    return states, lag
                await asyncio.sleep(5)


if __name__ == "__main__":
    main()
