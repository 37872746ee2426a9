"""A flow run is cancelled while masks are learned: afterwards, a launch has the undisturbed files.

Real server, worker and command line. `make faults` kills the server, its workers and flow runs.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml

from tests.faults.campaign import make_case
from tests.faults.comparison import contents
from tests.faults.harm import Case
from tests.flows.server import Server
from tests.flows.test_fleet import holders

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def launch(server: Server, case: Case, root: Path) -> str:
    """Start deployment rebuild/local; the id of the flow run."""
    given = yaml.safe_load(case.config.read_text()) | {"root": str(root)}
    done = server.launch("rebuild/local", given)
    assert done.returncode == 0, done.stdout + done.stderr
    [line] = [line for line in done.stdout.splitlines() if "UUID" in line]
    return line.split()[-1]


def ended(server: Server, flow_run: str) -> str:
    """Wait until a flow run has ended; the type of its state."""
    deadline = time.monotonic() + 400
    with server.client() as client:
        while not (state := client.read_flow_run(flow_run).state).is_final():
            assert time.monotonic() < deadline, state
            time.sleep(1)
    return str(state.type.value)


def test_a_flow_run_that_is_cancelled(server: Server, tmp_path: Path) -> None:
    """Nothing goes on learning, and a second launch finishes the rest."""
    case = make_case(tmp_path / "alone", 0, shards=3, steps=300, tolerance=0)
    root = tmp_path / "run"
    flow_run, deadline = launch(server, case, root), time.monotonic() + 300
    while not holders(root):  # until a mask is learned
        assert time.monotonic() < deadline
        time.sleep(0.05)
    done = server.run("-m", "prefect", "flow-run", "cancel", flow_run)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ended(server, flow_run) == "CANCELLED"
    assert not holders(root)
    assert ended(server, launch(server, case, root)) == "COMPLETED"
    assert contents(root) == contents(case.reference)
