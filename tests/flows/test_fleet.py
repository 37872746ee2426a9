"""Four worker processes on PostgreSQL share a run, and some of them are killed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.faults.campaign import make_case
from tests.faults.comparison import contents
from tests.faults.harm import Case
from tests.flows.postgresql import postgresql
from tests.flows.server import DEPLOYMENTS, REPOSITORY, Server, family

WORKERS = 4
SHARDS = 8
HEARTBEAT_SECONDS = 30


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """An undisturbed run by one process, with masks that take seconds each."""
    folder = tmp_path_factory.mktemp("alone")
    return make_case(folder, 0, shards=SHARDS, steps=300, tolerance=0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Server on PostgreSQL and the workers, with every deployment registered."""
    folder = tmp_path_factory.mktemp("fleet")
    with postgresql() as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_SERVER_DATABASE_CONNECTION_URL", address)
        patch.setenv("PREFECT_FLOWS_HEARTBEAT_FREQUENCY", f"{HEARTBEAT_SECONDS}")
        patch.setenv("OMP_NUM_THREADS", "1")
        automations = (DEPLOYMENTS / "automations.yaml").read_text()
        sooner = automations.replace("within: 240", f"within: {4 * HEARTBEAT_SECONDS}")
        (folder / "automations.yaml").write_text(sooner)
        for name in ("prefect.yaml", "on-events.yaml"):
            shutil.copy(DEPLOYMENTS / name, folder)
        server = Server(folder, WORKERS)
        try:
            server.start()
            server.deploy(folder)
            yield server
        finally:
            server.stop()


def rebuild(server: Server, case: Case, root: Path) -> subprocess.Popen[str]:
    """`prefect deployment run rebuild/local --watch` with a part for each worker."""
    given = yaml.safe_load(case.config.read_text())
    given |= {"root": str(root), "partitions": WORKERS}
    command = ["deployment", "run", "rebuild/local", "--watch", "--params", json.dumps(given)]
    return subprocess.Popen(
        [sys.executable, "-m", "prefect", *command],
        cwd=REPOSITORY,
        env=server.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def holders(root: Path) -> set[int]:
    """Processes that learn a mask at this moment, as their locks say."""
    found = set()
    for path in root.glob("locks/selection-*.lock"):
        try:
            words = path.read_text().split()
        except FileNotFoundError:
            continue
        if words:
            found.add(int(words[1]))
    return found


def wait_for_holders(root: Path, number: int, process: subprocess.Popen[str]) -> set[int]:
    """Wait until so many processes learn at once."""
    deadline = time.monotonic() + 600
    while len(found := holders(root)) < number:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, f"{found} learn, not {number}"
        time.sleep(0.02)
    return found


def flow_runs(server: Server) -> list[tuple[str, str, str]]:
    """Name, state and message of every flow run the server knows."""
    with server.client() as client:
        found = client.read_flow_runs(limit=200)
    return [(f.name, f.state_name or "", (f.state and f.state.message) or "") for f in found]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_fleet_that_loses_processes_makes_the_files_of_one_process(case, server, tmp_path):
    """A part is killed, and a worker with all it runs, as if its machine were gone."""
    root = tmp_path / "run"
    process = rebuild(server, case, root)
    learning = wait_for_holders(root, WORKERS, process)
    members = family(server.processes["gpu-3"].pid)
    others = learning.difference(members)
    assert len(others) == WORKERS - 1, "each worker has one part"
    os.kill(min(others), signal.SIGKILL)
    for pid in members:
        os.kill(pid, signal.SIGKILL)
    told, _ = process.communicate(timeout=800)
    found = flow_runs(server)
    assert process.returncode == 0, f"{told}{found}"
    assert contents(root) == contents(case.reference)
    prefix = f" of {root}, part "
    masks = [(name, ended) for name, ended, _ in found if name.startswith(f"selection{prefix}")]
    assert sorted(ended for _, ended in masks) == ["Completed"] * WORKERS + ["Crashed"] * 2
    assert sum(name.endswith(", attempt 2") for name, _ in masks) == 2
    for stage in ("scores", "embeddings"):
        parts = [ended for name, ended, _ in found if name.startswith(f"{stage}{prefix}")]
        assert parts == ["Completed"] * WORKERS
