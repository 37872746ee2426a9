"""Cost of Prefect: many small shards with the command line, and with a real server and worker.

The same run is computed twice in new folders. What the second takes more, divided by the number of
its task runs, is the cost of orchestration. CPU seconds are those of server, workers, launch and
flow run until its end, less what server and workers use in the same time without work. Every task
run on the server must be in state Completed (Linux).

    python -m benchmarks.orchestration --shards 500 --documents 200
    python -m benchmarks.orchestration --database postgresql+asyncpg://me:secret@host/prefect
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.scale import clustered, schema
from datamask.runs.opening import open_run
from datamask.runs.stages import stages_of
from tests.flows.server import REPOSITORY, Server, family

DIMENSION = 64
SHARDS_PER_FILE = 100
IDLE_SECONDS = 30
PATIENCE_SECONDS, ENDED = 300, {"Completed", "Failed", "Crashed", "Cancelled"}


def main() -> None:
    """Create the input, run with and without Prefect, and print the times."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shards", type=int, default=2000)
    parser.add_argument("--documents", type=int, default=5, help="of a shard")
    parser.add_argument("--workers", type=int, default=2, help="compute.workers of both runs")
    parser.add_argument("--database", default="", help="the server's; default SQLite")
    arguments = parser.parse_args()
    if arguments.database:
        os.environ["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = arguments.database
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        write_source(source, arguments.shards, arguments.documents)
        settings: dict[str, dict[str, object]] = {
            "source": {"path": str(source), "layout": "features"},
            "plan": {"rows_per_shard": arguments.documents},
            "embedding": {"dimension": DIMENSION},
            "selection": {"ratio": 0.2},
            "compute": {"workers": arguments.workers},
        }
        alone, cpu = _by_command_line(Path(folder) / "alone", settings)
        print(f"command line              {alone:8.1f} s, {cpu:.1f} CPU seconds", flush=True)
        _through_server(Path(folder), settings, alone, cpu)


def write_source(folder: Path, shards: int, documents: int) -> None:
    """Write a row group per shard, so that no shard reads rows of others."""
    folder.mkdir()
    batches = clustered(shards * documents, dimension=DIMENSION)
    table = pa.Table.from_batches(batches, schema(DIMENSION))
    rows = documents * SHARDS_PER_FILE
    for start in range(0, table.num_rows, rows):
        part = table.slice(start, rows)
        pq.write_table(part, folder / f"{start:08d}.parquet", row_group_size=documents)


def _by_command_line(root: Path, settings: dict[str, dict[str, object]]) -> tuple[float, float]:
    command = [sys.executable, "-m", "datamask.cli.main", "--quiet", "rebuild", str(root)]
    for group, values in settings.items():
        for key, value in values.items():
            command += ["--set", f"{group}.{key}={value}"]
    return _timed(command)


def _timed(command: list[str], **more: Any) -> tuple[float, float]:
    """Seconds and CPU seconds of a command and of what it starts."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **more)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - start, cpu


def _used(server: Server) -> dict[str, float]:
    """CPU seconds so far of each of the server's processes and of what they started."""
    tick, used = os.sysconf("SC_CLK_TCK"), {}
    for name, process in server.processes.items():
        members = [Path(f"/proc/{pid}/stat") for pid in family(process.pid)]
        fields = [path.read_text().rpartition(")")[2].split() for path in members if path.exists()]
        used[name] = sum(int(ticks) for row in fields for ticks in row[11:15]) / tick
    return used


def _through_server(
    folder: Path, settings: dict[str, dict[str, object]], alone: float, alone_cpu: float
) -> None:
    server, root = Server(folder / "services"), folder / "orchestrated"
    try:
        server.start()
        server.deploy()
        command = [sys.executable, "-m", "prefect", "deployment", "run", "rebuild/local", "--watch"]
        command += ["--param", f"root={root}"]
        for group, values in settings.items():
            command += ["--param", f"{group}={json.dumps(values)}"]
        time.sleep(IDLE_SECONDS)
        before = _used(server)
        time.sleep(IDLE_SECONDS)
        idle = (sum(_used(server).values()) - sum(before.values())) / IDLE_SECONDS
        before = _used(server)
        seconds, launch = _timed(command, env=server.environment, cwd=REPOSITORY)
        parts = {name: cpu - before[name] for name, cpu in _used(server).items()}
        cpu = sum(parts.values()) + launch - idle * seconds
        parts |= {"launch": launch, "without work": -idle * seconds}
        told = ", ".join(f"{name} {value:.1f}" for name, value in parts.items())
        print(f"server and worker         {seconds:8.1f} s, {cpu:.1f} CPU seconds ({told})")
        run = open_run(root)
        assert not any(run.remaining(stage) for stage in stages_of(run.settings))
        states, lag = asyncio.run(_states(server.address))
        tasks = states["Completed"]
        apart = (
            f"{1000 * (seconds - alone) / tasks:8.1f} ms, {1000 * (cpu - alone_cpu) / tasks:.1f}"
        )
        print(f"a task run takes more     {apart} ms of CPU; {tasks} task runs")
        print(f"all known to the server   {lag:8.1f} s after the end: {dict(states)}")
        log = (server.folder / "server.log").read_text(errors="replace")
        print(f"'database is locked'      {log.count('database is locked'):8d} times in its log")
    finally:
        server.stop()
        shutil.rmtree(root, ignore_errors=True)


async def _states(address: str) -> tuple[Counter[str], float]:
    """States of all task runs once each has ended, and how long that takes."""
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL, temporary_settings

    start, before = time.perf_counter(), Counter[str]()
    with temporary_settings({PREFECT_API_URL: address}):
        async with get_client() as client:
            while True:
                states: Counter[str] = Counter()
                while page := await client.read_task_runs(limit=200, offset=states.total()):
                    states.update(run.state_name or "none" for run in page)
                lag = time.perf_counter() - start
                if (states == before and states.keys() <= ENDED) or lag > PATIENCE_SECONDS:
                    return states, lag
                before = states
                await asyncio.sleep(5)


if __name__ == "__main__":
    main()
