"""Start, register and stop a Prefect server with its workers on this machine.

Each process leads its own process group, and the state folder holds its number, so `down` ends it
with all its children, even if it was started in the background, where SIGINT is ignored. Prefect's
own files are in the state folder too; ~/.prefect is not used.

    python deployments/services.py up [--port 4200] [--gpus 1] | deploy | down   [--state .services]
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DEPLOYMENTS = "deployments/prefect.yaml"
AUTOMATIONS = ROOT / "deployments" / "automations.yaml"
DEFAULT_PORT = 4200
POOLS = {"cpu": "4", "gpu": "1"}
START_SECONDS = 120
STOP_SECONDS = 10


def main() -> None:
    """Do what the command line asks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=["up", "deploy", "down"])
    parser.add_argument("--port", type=int, help=f"default: as before, or {DEFAULT_PORT}")
    parser.add_argument("--state", type=Path, default=ROOT / ".services")
    parser.add_argument("--gpus", type=int, help="workers of pool gpu, one GPU each; default: 1")
    arguments = parser.parse_args()
    state = arguments.state.resolve()
    if arguments.action == "up":
        up(state, arguments.port, arguments.gpus)
    else:
        {"deploy": deploy, "down": down}[arguments.action](state)


def up(state: Path, asked: int | None, gpus: int | None = None) -> None:
    """Start what is not running: server, pools, a worker of pool cpu, and one per GPU.

    A dead server is started again on the port that its workers know, with as many workers of pool
    gpu as before.
    """
    state.mkdir(parents=True, exist_ok=True)
    before = _noted(state / "port", DEFAULT_PORT)
    alive = _alive(state / "server.pid")
    port = before if alive else asked or before
    if not alive and _healthy(port):
        sys.exit(f"port {port} is taken by another server; choose one: make up PORT=4300")
    if port != before and any(_alive(path) for path in state.glob("worker-*.pid")):
        sys.exit(f"workers of port {before} still run; `make down` first")
    (state / "port").write_text(f"{port}\n", encoding="utf-8")
    server = ("server", "start", "--host", "127.0.0.1", "--port", str(port))
    _start(state, "server", port, *server)
    deadline = time.monotonic() + START_SECONDS
    while not _healthy(port):
        if time.monotonic() > deadline or not _alive(state / "server.pid"):
            sys.exit(f"the server did not start; see {state / 'server.log'}, then `make down`")
        time.sleep(0.5)
    gpus = gpus or _noted(state / "gpus", 1)
    (state / "gpus").write_text(f"{gpus}\n", encoding="utf-8")
    for pool, limit in POOLS.items():
        _prefect(state, port, "work-pool", "create", pool, "--type", "process", "--overwrite")
        for number in range(gpus if pool == "gpu" else 1):
            name = f"{pool}-{number}"
            # One worker alone sees all GPUs: `compute.gpus` says how many it uses.
            own = {"CUDA_VISIBLE_DEVICES": str(number)} if pool == "gpu" and gpus > 1 else {}
            worker = ("worker", "start", "--pool", pool, "--name", name, "--limit", limit)
            _start(state, f"worker-{name}", port, *worker, **own)
    print(f"server and workers are up: http://127.0.0.1:{port} (logs in {state})")
    print("next: make deploy; `make down` stops them")


def _noted(path: Path, otherwise: int) -> int:
    return int(path.read_text(encoding="utf-8")) if path.exists() else otherwise


def deploy(state: Path) -> None:
    """Register every deployment of prefect.yaml, and the automations about lost flow runs."""
    if not _alive(state / "server.pid"):
        sys.exit("no server is running; run `make up` first")
    port = _noted(state / "port", DEFAULT_PORT)
    os.environ.update(environment(state, port))
    # `down` also runs where no package is installed.
    import yaml

    from datamask.cli.progress import shown_progress
    from datamask.runs.in_progress import advance, working

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    total = len(yaml.safe_load((ROOT / DEPLOYMENTS).read_text(encoding="utf-8"))["deployments"])
    every = ("--no-prompt", "deploy", "--all", "--prefect-file", DEPLOYMENTS)
    command = _command(state, port, *every)
    with command, shown_progress(seconds=5), working("deploy"):
        advance(0, total, "deployments")
        _install(yaml.safe_load(AUTOMATIONS.read_text(encoding="utf-8"))["automations"])
        printed, done = [], 0
        for line in command.stdout or ():
            printed.append(line)
            done += "successfully created" in line
            advance(done, total, "deployments")
        if command.wait():
            sys.exit(f"prefect {' '.join(every)} failed:\n{''.join(printed)}")
    url = f"PREFECT_API_URL=http://127.0.0.1:{port}/api"
    print(f"{done} deployments registered. Run the demo (its corpus: `make corpus`):")
    print(f"{url} .venv/bin/prefect deployment run rebuild/demo --watch")


def _install(automations: list[dict[str, Any]]) -> None:
    """Replace automations; the server would keep two of one name."""
    from prefect.client.orchestration import get_client
    from prefect.events.schemas.automations import AutomationCore

    with get_client(sync_client=True) as client:
        for automation in automations:
            for old in client.read_automations_by_name(automation["name"]):
                client.delete_automation(old.id)
            client.create_automation(AutomationCore.model_validate(automation))


def down(state: Path) -> None:
    """Stop every started process with its children, workers first."""
    pids = sorted(state.glob("*.pid"), reverse=True) if state.exists() else []
    for path in pids:
        if _alive(path):
            _stop(int(path.read_text(encoding="utf-8").split()[0]))
            print(f"stopped {path.stem}")
        path.unlink()
    if not pids:
        print("nothing was running")


def environment(state: Path, port: int) -> dict[str, str]:
    """The environment of server, workers and commands."""
    url = f"http://127.0.0.1:{port}/api"
    return {
        **os.environ,
        "PREFECT_HOME": str(state / "prefect"),
        **{"PREFECT_API_URL": url, "PREFECT_SERVER_UI_API_URL": url},
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        # Otherwise `--watch` shows changes of state only.
        "PREFECT_SERVER_LOGS_STREAM_OUT_ENABLED": "true",
        "PREFECT_SERVER_LOGS_STREAM_PUBLISHING_ENABLED": "true",
        "PREFECT_WORKER_QUERY_SECONDS": os.environ.get("PREFECT_WORKER_QUERY_SECONDS", "2"),
        "DO_NOT_TRACK": "1",
    }


def _start(state: Path, name: str, port: int, *command: str, **own: str) -> None:
    pid_file = state / f"{name}.pid"
    if _alive(pid_file):
        return
    with (state / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "prefect", *command],
            cwd=ROOT,
            env={**environment(state, port), **own},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    pid_file.write_text(f"{process.pid} {_born(process.pid)}\n", encoding="utf-8")
    # The process outlives this command; with a return code, Python does not warn about that.
    process.returncode = 0


def _prefect(state: Path, port: int, *command: str) -> None:
    done = _command(state, port, *command)
    output, _ = done.communicate()
    if done.returncode:
        sys.exit(f"prefect {' '.join(command)} failed:\n{output}")


def _command(state: Path, port: int, *command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "prefect", *command],
        cwd=ROOT,
        env=environment(state, port),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _born(pid: int) -> str:
    """The start time of a process, to recognise a reused process number."""
    shown = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True)
    return shown.stdout.strip()


def _alive(pid_file: Path) -> bool:
    if not pid_file.exists():
        return False
    pid, _, born = pid_file.read_text(encoding="utf-8").strip().partition(" ")
    state = subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True).stdout
    return bool(born) and _born(int(pid)) == born and not state.strip().startswith("Z")


def _stop(pid: int) -> None:
    """End a process and all that it started, including process groups of flow runs."""
    groups = _groups_below(pid)
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for group in groups:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, sign)
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline:
            if not any(_group_lives(group) for group in groups):
                return
            time.sleep(0.2)


def _processes() -> list[tuple[int, int, int, str]]:
    columns = ["ps", "-e", "-o", "pid=,ppid=,pgid=,stat="]
    lines = subprocess.run(columns, capture_output=True, text=True).stdout.splitlines()
    return [(int(a), int(b), int(c), stat) for a, b, c, stat in map(str.split, lines)]


def family(pid: int) -> set[int]:
    """A process and all that it started, directly or indirectly."""
    processes, found, grown = _processes(), {pid}, {pid}
    while grown:
        grown = {child for child, parent, _, _ in processes if parent in grown} - found
        found |= grown
    return found


def _groups_below(pid: int) -> set[int]:
    members = family(pid)
    return {pid} | {group for child, _, group, _ in _processes() if child in members - {pid}}


def _group_lives(group: int) -> bool:
    return any(found == group and stat[0] != "Z" for _, _, found, stat in _processes())


if __name__ == "__main__":
    main()
