"""The whole of it with real server and worker processes: a shard fails, and is run again."""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.client.schemas.objects import ConcurrencyOptions

from datamask.config.loading import parse_settings
from tests import finished
from tests.flows.server import Server

pytestmark = pytest.mark.usefixtures("undrawn")


def of_this_run(server: Server, root: Path) -> list[Any]:
    """The server's flow runs of a run."""
    with server.client() as client:
        flow_runs = client.read_flow_runs()
    return [flow_run for flow_run in flow_runs if flow_run.parameters.get("root") == str(root)]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_failed_shard_is_named_and_run_again(tmp_path, server):
    """The operator's whole path, and nothing but the failed mask is learned twice."""
    finished.corpus(tmp_path / "corpus")
    root = tmp_path / "run"
    (root / "selection" / "00001.parquet").mkdir(parents=True)
    parameters = {
        "root": str(root),
        "source": {"path": str(tmp_path / "corpus")},
        "plan": {"rows_per_shard": 45},
        "embedding": {"method": "lexical", "dimension": 32},
        "selection": {"steps": 5, "ratio": 0.2},
        "publication": {"license": "other", "dry_run": True},
    }
    refused = server.launch("rebuild/local", {"root": "x", "plan": {"a": 1}})
    assert refused.returncode != 0
    assert "Additional properties" in refused.stdout + refused.stderr

    first = server.launch("rebuild/local", parameters, "--watch")
    assert first.returncode == 1, first.stdout + first.stderr
    messages = " ".join(run.state.message or "" for run in of_this_run(server, root))
    assert "selection: 1 of 3 shards failed: 00001" in messages, first.stdout + messages
    assert not (root / "subset").exists()
    kept = [(root / "selection" / f"{shard:05d}.parquet").stat().st_ino for shard in (0, 2)]

    (root / "selection" / "00001.parquet").rmdir()
    second = server.launch("rerun-failed/local", {"root": str(root)}, "--watch")
    assert second.returncode == 0, second.stdout + second.stderr
    assert [(root / "selection" / f"{shard:05d}.parquet").stat().st_ino for shard in (0, 2)] == kept
    assert pq.read_table(root / "subset").num_rows == 24
    with server.client() as client:
        artifacts = [one for one in client.read_artifacts() if one.key.endswith("-shards")]
    rows = json.loads(max(artifacts, key=lambda artifact: artifact.updated).data)
    states = [state for row in rows for name, state in row.items() if name != "shard"]
    assert states == ["done"] * 18  # 3 shards, 6 stages
    for name in ("report.html", "composition.duckdb", "published.json"):
        assert (root / name).is_file(), name


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_what_is_asked_is_done_and_nothing_else(tmp_path, server):
    """`shards`, `force` and the retry of a failed flow run, by a worker."""
    finished.corpus(tmp_path / "corpus")
    root = tmp_path / "run"
    settings = {
        "source": {"path": str(tmp_path / "corpus")},
        "plan": {"rows_per_shard": 45},
        "embedding": {"method": "lexical", "dimension": 32},
        "selection": {"steps": 5},
    }
    finished.finish(root, parse_settings(settings), "selection")
    masks = [root / "selection" / f"{shard:05d}.parquet" for shard in range(3)]

    def inodes() -> list[int]:
        return [path.stat().st_ino if path.is_file() else 0 for path in masks]

    def learn(**parameters: Any) -> subprocess.CompletedProcess[str]:
        return server.launch("learn-masks/gpu", {"root": str(root), **parameters}, "--watch")

    first, contents = inodes(), [path.read_bytes() for path in masks]
    assert learn(shards=[1], force=True).returncode == 0
    second = inodes()
    assert [now == then for now, then in zip(second, first, strict=True)] == [True, False, True]

    masks[0].unlink()
    masks[2].unlink()
    assert learn(shards=[0]).returncode == 0
    assert inodes() == [masks[0].stat().st_ino, second[1], 0]

    masks[2].mkdir()
    third = inodes()
    failed = learn()
    assert failed.returncode == 1, failed.stdout
    masks[2].rmdir()
    [name] = [str(run.id) for run in of_this_run(server, root) if run.state.is_failed()]
    retried = server.run("-m", "prefect", "flow-run", "retry", name)
    assert retried.returncode == 0, retried.stdout + retried.stderr
    deadline = time.monotonic() + 60
    while not masks[2].is_file() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert inodes()[:2] == third[:2]
    assert [path.read_bytes() for path in masks] == contents


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_an_event_starts_a_deployment(server):
    """An automation that the operator switched on extends the run that an event names.

    A second `datamask deploy` leaves it on, a schedule that was switched on, a limit and a tag too.
    """
    with server.client() as client:
        client.resume_automation(client.read_automations_by_name("datamask-extend")[0].id)
        weekly = client.read_deployment_by_name("extend/weekly")
        client.update_deployment_schedule(weekly.id, weekly.schedules[0].id, active=True)
        limited = client.read_deployment_by_name("rebuild/local")
        options = ConcurrencyOptions(collision_strategy="CANCEL_NEW")
        own = [*limited.tags, "night"]
        change = DeploymentUpdate(concurrency_limit=3, concurrency_options=options, tags=own)
        client.update_deployment(limited.id, change)
    server.deploy()
    resource = {"prefect.resource.id": "datamask.source.x", "datamask.root": "/runs/of-an-event"}
    emit = ("-m", "prefect", "event", "emit", "datamask.source.grew")
    emitted = server.run(*emit, "--resource", json.dumps(resource))
    assert emitted.returncode == 0, emitted.stderr
    roots: list[str] = []
    deadline = time.monotonic() + 120
    with server.client() as client:
        while not roots and time.monotonic() < deadline:
            time.sleep(1)
            flow_runs = client.read_flow_runs()
            made = [run for run in flow_runs if run.created_by is not None]
            by_event = [run for run in made if run.created_by.type == "AUTOMATION"]
            roots = [run.parameters["root"] for run in by_event]
        schedules = client.read_deployment_by_name("extend/weekly").schedules
        limited = client.read_deployment_by_name("rebuild/local")
    assert roots == ["/runs/of-an-event"]
    assert [schedule.active for schedule in schedules] == [True]
    assert limited.global_concurrency_limit.limit == 3
    assert limited.concurrency_options == options and limited.tags == own
