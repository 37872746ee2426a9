"""Faults of a real Prefect server, its workers and the processes of flow runs."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import yaml

from deployments import services
from tests.faults.campaign import Outcome, judge
from tests.faults.harm import PATIENCE_SECONDS, Case, outputs, wait_for_output
from tests.faults.processes import REPOSITORY

KINDS = ("flow run killed", "worker killed", "server killed", "everything killed")


def against_services(cases: list[Case], state: Path, faults: int, seed: int) -> Iterator[Outcome]:
    """That many faults, against one server with its workers under *state*."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    try:
        _manage("up", state, "--port", str(port))
        _manage("deploy", state)
        for number in range(faults):
            generator = random.Random(f"services {seed} {number}")
            root = state / f"fault{number}" / "run"
            kind, case = generator.choice(KINDS), generator.choice(cases)
            yield _inflict(kind, case, root, state, generator)
            shutil.rmtree(root.parent, ignore_errors=True)
    finally:
        _manage("down", state)


def _inflict(kind: str, case: Case, root: Path, state: Path, generator: random.Random) -> Outcome:
    port = int((state / "port").read_text())
    given = yaml.safe_load(case.config.read_text())
    parameters = {"root": str(root), **given, "compute": {**given["compute"], "workers": 2}}
    _deployment(state, port, "rebuild/local", parameters)
    # From the plan on, so that there is a run to continue.
    number = generator.randrange(1, len(outputs(case.reference)))
    deadline = time.monotonic() + PATIENCE_SECONDS
    if not wait_for_output(root, number, lambda: time.monotonic() < deadline, generator):
        return Outcome(kind, f"{len(outputs(root))} outputs", problem="the flow run does not go on")
    there = len(outputs(root))
    victims = _victims(kind, state)
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    while any(_lives(victim) for victim in victims):
        time.sleep(0.05)
    told = f"after {there} outputs, {len(victims)} processes"

    def recover() -> None:
        _manage("up", state)
        done = _deployment(state, port, "rerun-failed/local", {"root": str(root)}, "--watch")
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)

    return judge(kind, told, case, root, recover)


def _victims(kind: str, state: Path) -> list[int]:
    worker, server = (_pid(state / f"{name}.pid") for name in ("worker-cpu-0", "server"))
    flow_runs = [pid for pid in _descendants(worker) if pid != worker]
    return {
        "flow run killed": flow_runs,
        "worker killed": [worker],
        "server killed": [server, *_descendants(server)],
        "everything killed": [server, *_descendants(server), worker, *flow_runs],
    }[kind]


def _lives(pid: int) -> bool:
    command = ["ps", "-o", "stat=", "-p", str(pid)]
    state = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return bool(state) and not state.startswith("Z")


def _pid(noted: Path) -> int:
    return int(noted.read_text().split()[0])


def _descendants(pid: int) -> list[int]:
    lines = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True).stdout
    parents = {int(child): int(parent) for child, parent in map(str.split, lines.splitlines())}
    family = [pid]
    for member in family:
        family += [child for child, parent in parents.items() if parent == member]
    return family[1:]


def _deployment(
    state: Path, port: int, name: str, parameters: dict[str, object], *more: str
) -> subprocess.CompletedProcess[str]:
    given = [f"{key}={json.dumps(value)}" for key, value in parameters.items() if key != "root"]
    given.append(f"root={parameters['root']}")
    flags = [part for item in given for part in ("--param", item)]
    return subprocess.run(
        [sys.executable, "-m", "prefect", "deployment", "run", name, *flags, *more],
        cwd=REPOSITORY,
        env=services.environment(state, port),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )


def _manage(action: str, state: Path, *more: str) -> None:
    command = (sys.executable, "deployments/services.py", action, "--state", str(state), *more)
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env={**os.environ, "PREFECT_WORKER_QUERY_SECONDS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
