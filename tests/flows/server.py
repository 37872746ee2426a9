"""A Prefect server and its workers as processes, started by Prefect's own commands."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
DEPLOYMENTS = REPOSITORY / "deployments"
START_SECONDS = 300
STOP_SECONDS = 10

DEPLOY = """
import sys
from pathlib import Path
from flows.orchestration.deploying import deploy
print(*deploy(folder=Path(sys.argv[1])), sep="\\n")
"""


def free_port() -> int:
    """A port that a server which was killed can have again.

    It is below 32,768, because the kernel gives higher ports to outgoing connections. Another
    process could therefore hold such a port while the server is down.
    """
    for port in random.sample(range(15_000, 32_768), 100):
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
    raise OSError("none of 100 ports is free")


@dataclass
class Server:
    """A server on a free port, a worker of pool cpu, and workers of pool gpu.

    Args:
        folder: gets Prefect's files and the logs.
        gpu_workers: number of workers of pool gpu.
        python: the interpreter of all processes.
        at: the folder in which they are started.
    """

    folder: Path
    gpu_workers: int = 1
    python: str = sys.executable
    at: Path = REPOSITORY
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.address = f"http://127.0.0.1:{free_port()}/api"
        self.environment = {
            **os.environ,
            "PREFECT_HOME": str(self.folder / "prefect"),
            "PREFECT_API_URL": self.address,
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "COLUMNS": "2000",
            "DO_NOT_TRACK": "1",
        }

    def start(self) -> None:
        """Start what does not run: server, pools, workers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        port = self.address.rpartition(":")[2].removesuffix("/api")
        self._start("server", "server", "start", "--port", port)
        deadline = time.monotonic() + START_SECONDS
        while not self._is_healthy():
            is_starting = self.processes["server"].poll() is None and time.monotonic() < deadline
            assert is_starting, (self.folder / "server.log").read_text()[-2000:]
            time.sleep(0.5)
        for pool, limit, workers in (("cpu", "4", 1), ("gpu", "1", self.gpu_workers)):
            for number in range(workers):
                name = f"{pool}-{number}"
                worker = ("worker", "start", "--pool", pool, "--type", "process")
                self._start(name, *worker, "--name", name, "--limit", limit)

    def deploy(self, folder: Path = DEPLOYMENTS) -> None:
        """Register pools and what a folder has: all deployments and the automations."""
        command = (
            ("-m", "datamask.cli.main", "deploy")
            if folder == DEPLOYMENTS
            else ("-c", DEPLOY, folder)
        )
        done = self.run(*map(str, command))
        assert done.returncode == 0, done.stdout + done.stderr

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run Python with a command line, as an operator of this server does."""
        return subprocess.run(
            [self.python, *command],
            cwd=self.at,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def launch(
        self, deployment: str, parameters: dict[str, Any], *more: str
    ) -> subprocess.CompletedProcess[str]:
        """`prefect deployment run` with these parameters and options."""
        command = ("-m", "prefect", "deployment", "run", deployment, *more)
        return self.run(*command, "--params", json.dumps(parameters))

    @contextlib.contextmanager
    def client(self) -> Iterator[Any]:
        """Prefect's client of this server, in this process."""
        from prefect.client.orchestration import get_client
        from prefect.settings import PREFECT_API_URL, temporary_settings

        with (
            temporary_settings({PREFECT_API_URL: self.address}),
            get_client(sync_client=True) as client,
        ):
            yield client

    def stop(self) -> None:
        """End all processes with what they started, workers first."""
        for process in reversed(self.processes.values()):
            members = family(process.pid)
            for sign in (signal.SIGTERM, signal.SIGKILL):
                for pid in members:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, sign)
                deadline = time.monotonic() + STOP_SECONDS
                while any(map(lives, members)) and time.monotonic() < deadline:
                    process.poll()
                    time.sleep(0.2)
            process.wait()

    def _start(self, name: str, *command: str) -> None:
        if name in self.processes and self.processes[name].poll() is None:
            return
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [self.python, "-m", "prefect", *command],
                cwd=self.at,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def lives(pid: int) -> bool:
    """Return True if a process runs."""
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return bool(shown.stdout.strip()) and not shown.stdout.strip().startswith("Z")


def family(pid: int) -> list[int]:
    """A process and all that it started, directly or indirectly."""
    shown = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True).stdout
    pairs = [tuple(map(int, line.split())) for line in shown.splitlines()]
    members = [pid]
    for member in members:
        members += [child for child, parent in pairs if parent == member]
    return members
