"""The automations of deployments/on-events.yaml, fired on a server by what flows really emit."""

import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from datamask.config.compute import Compute
from datamask.execution.pipeline import run_stage
from datamask.planning.plan import plan_run
from datamask.runs.run import Run
from tests import finished
from tests.flows.server import DEPLOYMENTS, Server

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

SHIPPED = [
    automation["name"]
    for automation in yaml.safe_load((DEPLOYMENTS / "on-events.yaml").read_text())["automations"]
]
SECONDS = 90


@pytest.fixture(scope="module")
def messages() -> Iterator[tuple[str, list[str]]]:
    """The address of a web hook, and the messages that it got."""
    heard: list[str] = []

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            """Keep the message."""
            heard.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", heard
        server.shutdown()


@pytest.fixture(scope="module")
def deployed(prefect: None, messages: tuple[str, list[str]]) -> None:
    """Everything is registered on the server, with a place for messages, and switched on."""
    from prefect.blocks.notifications import CustomWebhookNotificationBlock
    from prefect.client.orchestration import get_client

    from flows.orchestration.deploying import deploy

    block = CustomWebhookNotificationBlock(
        name="hook", url=messages[0], json_data={"text": "{{subject}} {{body}}"}
    )
    block.save("datamask-notify")
    assert not [line for line in deploy() if "left out" in line]
    with get_client(sync_client=True) as client:
        for name in SHIPPED:
            client.resume_automation(client.read_automations_by_name(name)[0].id)
    time.sleep(5)  # the server loads triggers after it has answered


def eventually(found: Callable[[], Any]) -> Any:
    """Return the result of *found* as soon as it is true."""
    deadline = time.monotonic() + SECONDS
    while not (value := found()):
        assert time.monotonic() < deadline, "nothing followed"
        time.sleep(0.5)
    return value


def begun(flow: str) -> dict[str, dict[str, Any]]:
    """Parameters of the flow runs that automations have begun of a flow, by run."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        flow_id = client.read_flow_by_name(flow).id
        flow_runs = client.read_flow_runs()
    by_event = [one for one in flow_runs if one.created_by and one.created_by.type == "AUTOMATION"]
    return {one.parameters["root"]: one.parameters for one in by_event if one.flow_id == flow_id}


def run_with(tmp_path: Path, source: Path, name: str, **evaluation: Any) -> Run:
    """A planned run whose settings of group `evaluation` are these."""
    return plan_run(tmp_path / name, finished.settings(source, evaluation=evaluation))


@pytest.mark.usefixtures("deployed")
def test_each_automation_does_what_it_says(tmp_path, source, messages):
    """Of runs that publish, that with texts and without arms is evaluated, by its own settings.

    Files that were added begin `extend`, and shards and flow runs that fail are told.
    """
    from prefect import flow
    from prefect.events import emit_event

    from datamask.config.evaluation import Evaluation
    from datamask.config.loading import with_groups
    from flows.orchestration.events import tell

    short = {"hold_out": 0.2, "model": "tiny", "tokens": 1000}
    runs = {
        "texts": run_with(tmp_path, source, "texts", **short),
        "arms": run_with(tmp_path, source, "arms", **short, arms=["ours", "random"]),
        "none": run_with(tmp_path, source, "none"),
    }
    for run in runs.values():
        tell(run, "subset.published", url="https://huggingface.co/datasets/a/b")
    added = {"prefect.resource.id": "datamask.source.mine", "datamask.root": "/runs/mine"}
    emit_event("datamask.source.grew", resource=added)
    tell(runs["none"], "shard.failed", stage="scores", shard="00001", problem="is torn")

    @flow(name="doomed")
    def doomed() -> None:
        raise ValueError("the flow run's own reason")

    doomed_of_deployment(doomed)
    assert eventually(lambda: begun("extend")) == {"/runs/mine": {"root": "/runs/mine"}}
    address = runs["texts"].address
    parameters = eventually(lambda: begun("evaluate"))[address]
    given = Evaluation.model_validate(parameters["evaluation"])
    asked = with_groups(runs["texts"].settings, {"evaluation": given}).evaluation
    assert (asked.hold_out, asked.model, len(asked.arms)) == (0.2, "tiny", 3)
    told = eventually(lambda: [text for text in messages[1] if "is torn" in text])
    assert runs["none"].address in told[0] and "scores 00001" in told[0]
    assert eventually(lambda: [text for text in messages[1] if "own reason" in text])
    assert {*begun("evaluate")} == {address}


def doomed_of_deployment(flow: Any) -> None:
    """Run a flow as a deployment's flow run with the tag that all have; it fails."""
    from prefect.client.orchestration import get_client
    from prefect.flow_engine import run_flow

    with get_client(sync_client=True) as client:
        made = client.create_deployment(client.create_flow(flow), "x", tags=["datamask"])
        flow_run = client.create_flow_run_from_deployment(made)
    assert run_flow(flow, flow_run=flow_run, return_type="state").is_failed()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_published_subset_is_evaluated(tmp_path, server: Server):
    """The flow run that the automation begins is completed by a worker of pool gpu."""
    finished.corpus(tmp_path / "corpus")
    evaluation = {"hold_out": 0.2, "model": "tiny", "tokens": 1000, "seeds": 2}
    chosen = finished.settings(tmp_path / "corpus", evaluation=evaluation)
    run = plan_run(tmp_path / "run", chosen)
    for stage in finished.up_to(run, "composition"):
        run_stage(run, stage, Compute())
    with server.client() as client:
        client.resume_automation(client.read_automations_by_name("datamask-evaluate")[0].id)
    resource = {
        "prefect.resource.id": "datamask.run.x",
        "datamask.root": str(run.root),
        "datamask.evaluation": "texts",
    }
    emit = ("-m", "prefect", "event", "emit", "datamask.subset.published")
    assert server.run(*emit, "--resource", json.dumps(resource)).returncode == 0

    def ended() -> list[Any]:
        with server.client() as client:
            flow_runs = client.read_flow_runs()
        mine = [one for one in flow_runs if one.parameters.get("root") == str(run.root)]
        return [one.state for one in mine if one.state and one.state.is_final()]

    deadline = time.monotonic() + 600
    while not (states := ended()) and time.monotonic() < deadline:
        time.sleep(2)
    assert states and states[0].is_completed(), states
