"""A flow run is disturbed while masks are learned: afterwards, a launch has the undisturbed files.

The server is killed and started again; the flow run is cancelled; the deployment is launched twice
at once; a file of the source is damaged. Real server, worker and command line.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
import yaml

from tests.faults.campaign import make_case
from tests.faults.comparison import contents
from tests.faults.harm import Case
from tests.flows.server import Server, family
from tests.flows.test_fleet import holders

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ENDED = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """An undisturbed run, with masks that take seconds each."""
    return make_case(tmp_path_factory.mktemp("alone"), 0, shards=3, steps=300, tolerance=0)


def launch(server: Server, case: Case, root: Path) -> str:
    """Start deployment rebuild/local; the id of the flow run."""
    given = yaml.safe_load(case.config.read_text()) | {"root": str(root)}
    command = ("deployment", "run", "rebuild/local", "--params", json.dumps(given))
    done = server.run("-m", "prefect", *command)
    assert done.returncode == 0, done.stdout + done.stderr
    [line] = [line for line in done.stdout.splitlines() if "UUID" in line]
    return line.split()[-1]


def state_of(server: Server, flow_run: str) -> tuple[str, str]:
    """Type and message of a flow run's state."""
    with server.client() as client:
        state = client.read_flow_run(flow_run).state
    return (state.type.value, state.message or "") if state else ("", "")


def wait_until_learning(root: Path) -> None:
    """Wait until a mask is learned."""
    deadline = time.monotonic() + 300
    while not holders(root):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def wait_until_ended(server: Server, flow_run: str) -> tuple[str, str]:
    """Wait until a flow run has ended; its state."""
    deadline = time.monotonic() + 400
    while (state := state_of(server, flow_run))[0] not in ENDED:
        assert time.monotonic() < deadline, state
        time.sleep(1)
    return state


def test_a_server_that_is_killed_and_comes_back(case: Case, server: Server, tmp_path: Path) -> None:
    """The flow run ends, or a second launch finishes what is left."""
    root = tmp_path / "run"
    flow_run = launch(server, case, root)
    wait_until_learning(root)
    for pid in family(server.processes["server"].pid):
        os.kill(pid, signal.SIGKILL)
    server.processes["server"].wait()
    server.start()
    if wait_until_ended(server, flow_run)[0] != "COMPLETED":
        assert wait_until_ended(server, launch(server, case, root))[0] == "COMPLETED"
    assert contents(root) == contents(case.reference)


def test_a_flow_run_that_is_cancelled(case: Case, server: Server, tmp_path: Path) -> None:
    """Nothing goes on learning, and a second launch finishes what is left."""
    root = tmp_path / "run"
    flow_run = launch(server, case, root)
    wait_until_learning(root)
    done = server.run("-m", "prefect", "flow-run", "cancel", flow_run)
    assert done.returncode == 0, done.stdout + done.stderr
    assert wait_until_ended(server, flow_run)[0] == "CANCELLED"
    assert not holders(root)
    assert wait_until_ended(server, launch(server, case, root))[0] == "COMPLETED"
    assert contents(root) == contents(case.reference)


def test_a_deployment_that_is_launched_twice(case: Case, server: Server, tmp_path: Path) -> None:
    """Both flow runs share the work, or one is refused; the files are those of one."""
    root = tmp_path / "run"
    first, second = (launch(server, case, root) for _ in range(2))
    ended = {wait_until_ended(server, flow_run)[0] for flow_run in (first, second)}
    assert ended == {"COMPLETED"}
    assert contents(root) == contents(case.reference)


def test_a_file_of_the_source_that_is_damaged(case: Case, server: Server, tmp_path: Path) -> None:
    """The flow run fails and names the file; with the file as it was, a launch goes on."""
    root = tmp_path / "run"
    path = case.config.parent / "corpus" / "1.parquet"
    whole = path.read_bytes()
    flow_run = launch(server, case, root)
    wait_until_learning(root)
    path.write_bytes(whole[:-100])
    try:
        kind, message = wait_until_ended(server, flow_run)
    finally:
        path.write_bytes(whole)
    assert kind == "FAILED" and str(path) in message
    assert wait_until_ended(server, launch(server, case, root))[0] == "COMPLETED"
    assert contents(root) == contents(case.reference)
