"""A stage in parts: a real (throw-away) Prefect server, and a worker that is a thread."""

import contextlib
import contextvars
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from datamask.config.compute import Compute
from datamask.execution import attempts
from datamask.execution.pipeline import run_stage
from datamask.runs.run import Run
from tests.finished import up_to
from tests.flows.test_fan_out import planned
from tests.flows.test_lost_runs import automations

pytestmark = pytest.mark.usefixtures("prefect")


@pytest.fixture
def ready(tmp_path: Path, corpus: Path) -> Run:
    """Three shards whose masks are all that is left."""
    run = planned(tmp_path, corpus)
    for stage in up_to(run, "embeddings"):
        run_stage(run, stage, Compute())
    return run


@contextmanager
def a_worker(monkeypatch: pytest.MonkeyPatch, lose: Callable[[str], bool]) -> Iterator[list[Any]]:
    """Register the deployment and work off its flow runs; those that *lose* names just end.

    Yields their names and shards, in the order in which they were begun.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowFilter, FlowRunFilter
    from prefect.flow_engine import run_flow
    from prefect.states import Crashed

    from flows.orchestration import partitions
    from flows.stages import work_on_shards

    monkeypatch.setattr(partitions, "POLL_SECONDS", 0.1)
    begun: list[Any] = []
    stop = threading.Event()
    scheduled = FlowRunFilter.model_validate({"state": {"type": {"any_": ["SCHEDULED"]}}})
    # Other tests leave flow runs of other flows on the server.
    parts = FlowFilter.model_validate({"name": {"any_": [work_on_shards.name]}})

    def work() -> None:
        with get_client(sync_client=True) as client:
            while not stop.wait(0.1):
                for run in client.read_flow_runs(flow_filter=parts, flow_run_filter=scheduled):
                    begun.append((run.name, run.parameters["units"]))
                    if lose(run.name):
                        client.set_flow_run_state(run.id, Crashed(message="killed"), force=True)
                    else:
                        run_flow(work_on_shards, flow_run=run, return_type="state")

    register()
    # The thread knows the server, and of no flow run that is under way.
    thread = threading.Thread(target=contextvars.copy_context().run, args=(work,))
    thread.start()
    try:
        yield begun
    finally:
        stop.set()
        thread.join()


def register() -> None:
    """Make the deployment, of no pool, and the automations known to the server."""
    from prefect.client.orchestration import get_client
    from prefect.events.schemas.automations import AutomationCore
    from prefect.exceptions import ObjectNotFound

    from flows.stages import work_on_shards

    with get_client(sync_client=True) as client:
        # Tests of other modules leave deployments of pools that have no worker.
        for name in ("gpu", "cpu"):
            with contextlib.suppress(ObjectNotFound):
                client.delete_deployment(
                    client.read_deployment_by_name(f"{work_on_shards.name}/{name}").id
                )
        client.create_deployment(flow_id=client.create_flow(work_on_shards), name="gpu")
        for automation in automations():
            if not client.read_automations_by_name(automation["name"]):
                client.create_automation(AutomationCore.model_validate(automation))


def test_without_the_automation_nothing_is_begun(ready):
    """A part on a lost machine would be waited for without end, so this is refused before work."""
    from prefect.client.orchestration import get_client

    from flows.stages import learn_masks

    register()
    with get_client(sync_client=True) as client:
        for found in client.read_automations_by_name("datamask-silent"):
            client.delete_automation(found.id)
    state = learn_masks(ready.root, partitions=2, return_state=True)
    assert state.is_failed()
    assert state.message.startswith("partitions: no automation datamask-silent on this server")
    assert ready.remaining("selection") == [0, 1, 2]


def test_a_part_goes_where_a_worker_is(tmp_path, ready, monkeypatch):
    """Without a worker in either pool, or with paused ones, the launch is refused with commands.

    With a worker of pool cpu alone, it does the stages that would use a GPU, too.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate

    from flows.orchestration import partitions
    from flows.stages import learn_masks, work_on_shards

    def refused() -> str:
        state = learn_masks(ready.root, partitions=2, return_state=True)
        assert state.is_failed() and ready.remaining("selection") == [0, 1, 2]
        return str(state.message)

    register()
    with get_client(sync_client=True) as client:
        flow = client.create_flow(work_on_shards)
        for kind in ("cpu", "gpu"):
            client.create_work_pool(WorkPoolCreate(name=f"of-{kind}", type="process"))
            client.create_deployment(flow_id=flow, name=kind, work_pool_name=f"of-{kind}")
        try:
            commands = ("worker start --pool of-gpu", "worker start --pool of-cpu")
            assert all(command in refused() for command in commands)
            client.send_worker_heartbeat("of-cpu", "mine")
            for stage in ("selection", "embeddings", "scores"):
                chosen = partitions.choose_deployment(client, stage)
                assert chosen == ("work-on-shards/cpu", "of-cpu")
            client.update_work_pool("of-cpu", WorkPoolUpdate(is_paused=True))
            assert "work-pool resume of-cpu" in refused()
            client.send_worker_heartbeat("of-gpu", "mine")
            for stage in ("selection", "scores"):
                chosen = partitions.choose_deployment(client, stage)
                assert chosen == ("work-on-shards/gpu", "of-gpu")
            monkeypatch.setattr(partitions, "own_pool", lambda client: "of-gpu")
            client.update_work_pool("of-gpu", WorkPoolUpdate(concurrency_limit=1))
            assert "set-concurrency-limit of-gpu 2" in refused()
            client.update_work_pool("of-gpu", WorkPoolUpdate(concurrency_limit=2))
            lines: list[str] = []
            monkeypatch.setattr(partitions, "SECONDS_BETWEEN_LINES", 0.1)
            monkeypatch.setattr(partitions, "first_log", lambda: lines.append)
            alone = client.create_flow_run(work_on_shards, parameters={"root": str(ready.root)})
            monkeypatch.setattr(type(client), "read_flow_runs", lambda *given, **named: [alone])
            with partitions.waits_told("selection", alone.id, "of-gpu"):
                deadline = time.monotonic() + 30
                while not lines and time.monotonic() < deadline:
                    time.sleep(0.1)
            assert "worker start --pool of-gpu" in lines[0]
        finally:
            client.delete_deployment(client.read_deployment_by_name("work-on-shards/cpu").id)
            client.create_deployment(flow_id=flow, name="gpu")
            for kind in ("cpu", "gpu"):
                client.delete_work_pool(f"of-{kind}")


def test_the_first_flow_run_says_what_parts_it_waits_for(ready, monkeypatch):
    """Each minute; and warnings of the parts, also of other processes, are in its log too."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterParentFlowRunId

    from flows.orchestration import partitions
    from flows.stages import learn_masks
    from tasks import forwarding

    monkeypatch.setattr(partitions, "SECONDS_BETWEEN_LINES", 0.2)
    logged: list[dict[str, Any]] = []
    monkeypatch.setattr("prefect.logging.handlers.emit_api_log", logged.append)
    first = threading.Event()

    def warn(run: Run, stage: str, units: list[int], *given: Any, **named: Any) -> None:
        if not first.wait(30):
            raise TimeoutError
        logging.getLogger("datamask.selection").warning("of shards %s", units)
        attempt(run, stage, units, *given, **named)

    attempt = attempts.attempt
    monkeypatch.setattr("tasks.stages.attempt", warn)
    with a_worker(monkeypatch, lambda name: False):
        threading.Timer(3, first.set).start()
        state = learn_masks(ready.root, partitions=2, return_state=True)
    assert state.is_completed()
    own = str(state.state_details.flow_run_id)
    told = [log["message"] for log in logged if log["flow_run_id"] == own]
    assert [line for line in told if line.startswith("selection: waiting for parts")]
    said = {line for line in told if line.startswith("of shards")}
    assert said == {f"of shards [{shard}]" for shard in range(3)}
    children = FlowRunFilterParentFlowRunId(any_=[state.state_details.flow_run_id])
    with get_client(sync_client=True) as client:
        parts = client.read_flow_runs(flow_run_filter=FlowRunFilter(parent_flow_run_id=children))
    assert len([part for part in parts if part.name.startswith("selection ")]) == 2
    assert {str(forwarding.first_flow_run(part.id)) for part in parts} == {own}


def test_without_a_deployment_nothing_is_begun(tmp_path, corpus):
    """One line says which is missing, before the first stage."""
    from flows.rebuild import rerun_failed

    run = planned(tmp_path, corpus)
    state = rerun_failed(run.root, partitions=2, return_state=True)
    assert state.is_failed()
    assert state.message.startswith("partitions: no deployment work-on-shards/cpu on this server")
    assert run.remaining("scores") == [0, 1, 2]


@pytest.mark.slow
def test_parts_do_what_is_left(ready, monkeypatch):
    """A bad shard is named and stops no other; the rest is one part (files: test_fleet.py)."""
    from flows.stages import learn_masks

    ready.path("selection", 1).mkdir(parents=True)
    with a_worker(monkeypatch, lambda name: False) as begun:
        failed = learn_masks(ready.root, partitions=2, return_state=True)
        assert failed.is_failed()
        # The reason is the shard's own, not that its part failed.
        assert failed.message.startswith("selection: 1 of 3 shards failed: 00001 (")
        assert (
            f"rerun-failed/local --param root={ready.root} --param partitions=2`" in failed.message
        )
        ready.path("selection", 1).rmdir()
        assert learn_masks(ready.root, partitions=2, return_state=True).is_completed()
        assert learn_masks(ready.root, partitions=2, return_state=True).is_completed()
        forced = learn_masks(ready.root, partitions=2, force=True, return_state=True)
        assert forced.is_completed()
    name = f"selection of {ready.root}, part"
    all_of_them = [(f"{name} 1 of 2", [0, 2]), (f"{name} 2 of 2", [1])]
    begun = [one for one in begun if one[0].startswith(name)]
    assert sorted(begun[:2]) == all_of_them
    assert begun[2] == (f"{name} 1 of 1", [1]), "only what was left"
    assert sorted(begun[3:]) == all_of_them, "nothing, and then everything by force"


@pytest.mark.slow
def test_a_lost_part_is_begun_again_but_not_for_ever(ready, monkeypatch):
    """One that is lost once costs nothing; one that always is, its shards, with the reason."""
    from flows.stages import learn_masks

    lost: list[str] = []

    def lose(name: str) -> bool:
        lost.append(name)
        return "part 1 of 3" in name or (lost.count(name) == 1 and name.endswith("part 2 of 3"))

    with a_worker(monkeypatch, lose) as begun:
        state = learn_masks(ready.root, partitions=3, return_state=True)
    assert state.message.startswith(
        f"selection: 1 of 3 shards failed: 00000 (selection of {ready.root}, part 1 of 3: killed)"
    )
    attempts = [name.rpartition("part ")[2] for name, _ in begun]
    assert sorted(attempts) == [
        *("1 of 3", "1 of 3, attempt 2", "1 of 3, attempt 3"),
        *("2 of 3", "2 of 3, attempt 2", "3 of 3"),
    ]
    assert ready.remaining("selection") == [0]
