"""The automations of deployments/automations.yaml, which end lost flow runs."""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from tests.flows.server import DEPLOYMENTS

pytestmark = pytest.mark.usefixtures("prefect")


def automations(**trigger: object) -> list[Any]:
    """Return deployments/automations.yaml with these values in every trigger."""
    text = (DEPLOYMENTS / "automations.yaml").read_text(encoding="utf-8")
    automations: list[Any] = yaml.safe_load(text)["automations"]
    for automation in automations:
        automation["trigger"] |= trigger
    return automations


STATES = {
    **{"COMPLETED": "COMPLETED", "FAILED": "FAILED", "CANCELLED": "CANCELLED"},
    **{"CRASHED": "CRASHED", "RUNNING": "CRASHED", "PENDING": "CRASHED"},
}
"""The type of a flow run's state, and of its state after the action of an automation."""


@pytest.mark.parametrize(("before", "after"), STATES.items())
def test_automations_end_what_has_not_ended(before, after):
    """The server accepts the automations' action for a lost flow run, and for no finished one."""
    from prefect import flow
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.objects import State, StateType

    actions = [action for automation in automations() for action in automation["actions"]]
    assert actions
    with get_client(sync_client=True) as client:
        for action in actions:
            flow_run = client.create_flow_run(flow(lambda: None, name="short"))
            own = State(type=StateType(before), message="its own")
            client.set_flow_run_state(flow_run.id, own)
            proposed = State(type=StateType(action["state"]), message=action["message"])
            client.set_flow_run_state(flow_run.id, proposed, force=action.get("force", False))
            state = client.read_flow_run(flow_run.id).state
            client.delete_flow_run(flow_run.id)
            assert state is not None and state.type.value == after
            assert (state.message == "its own") == (before == after)


WAYS = {
    **{"silent": "Crashed", "taken": "Crashed", "submitted": "Crashed"},
    **{"completed": "Completed", "failed": "Failed", "scheduled": "Scheduled"},
    "alive": "Running",
}
"""What happens to a flow run, and the state that it then has."""

EACH = 3
WITHIN = 30
"""Seconds of silence, in place of minutes: a busy server may need ten for an event."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_server_ends_lost_flow_runs_and_no_others():
    """On a busy machine, every lost flow run is Crashed, and none that ended, waits or is heard.

    Heartbeats of flow runs that have ended arrive after their end.
    """
    from prefect import flow
    from prefect.client.orchestration import get_client
    from prefect.events import emit_event
    from prefect.events.schemas.automations import AutomationCore
    from prefect.states import Completed, Failed, Pending, Running, Scheduled, State

    def heard(flow_run: Any) -> None:
        resource = {"prefect.resource.id": f"prefect.flow-run.{flow_run.id}"}
        emit_event("prefect.flow-run.heartbeat", resource=resource)
        time.sleep(0.3)

    states: dict[str, list[State[Any]]] = {
        "silent": [Pending(), Running()],
        "taken": [Pending()],
        "submitted": [Pending(), Pending(name="Submitting")],
        "completed": [Pending(), Running(), Completed()],
        "failed": [Pending(), Running(), Failed()],
        "scheduled": [Scheduled()],
        "alive": [Pending(), Running(), Failed(), Pending(), Running()],
    }
    short = flow(lambda: None, name="short")
    with get_client(sync_client=True) as client:
        made = [
            client.create_automation(AutomationCore.model_validate(automation))
            for automation in automations(within=WITHIN)
        ]
        time.sleep(10)  # the server loads triggers after it has answered
        with busy(2):
            flow_runs = []
            for way in WAYS:
                for _ in range(EACH):
                    first, *others = states[way]
                    flow_run = client.create_flow_run(short, state=first)
                    flow_runs.append((way, flow_run))
                    for state in others:
                        client.set_flow_run_state(flow_run.id, state)
            for way, flow_run in flow_runs:
                if way in ("silent", "completed", "failed", "alive"):
                    heard(flow_run)
            deadline = time.monotonic() + 4 * WITHIN
            while time.monotonic() < deadline:
                for way, flow_run in flow_runs:
                    if way == "alive":
                        heard(flow_run)
                time.sleep(1)
        states = [
            (way, client.read_flow_run(flow_run.id).state_name) for way, flow_run in flow_runs
        ]
        for automation in made:
            client.delete_automation(automation)
        for _, flow_run in flow_runs:
            client.delete_flow_run(flow_run.id)
    assert Counter(states) == Counter({(way, WAYS[way]): EACH for way in WAYS})


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that compute without a pause."""
    started = [subprocess.Popen([sys.executable, "-c", "while 1: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()
