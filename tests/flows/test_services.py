"""The whole of it with real server and worker processes: a shard fails, and is run again."""

import json
import subprocess
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.config.loading import parse_settings
from tests.finished import finish

pytestmark = pytest.mark.usefixtures("undrawn")

WORDS = ("the", "model", "value", "returns", "list", "when", "given", "and", "is", "used", "file")


def write_corpus(folder: Path) -> None:
    """Sixty short texts, different from each other."""
    folder.mkdir()
    texts = [
        " ".join(WORDS[(number * step + step) % len(WORDS)] for step in range(1, 40 + number))
        for number in range(60)
    ]
    table = pa.table({"id": [f"d{number:03d}" for number in range(60)], "text": texts})
    pq.write_table(table, folder / "part.parquet", row_group_size=20)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_failed_shard_is_named_and_run_again(tmp_path, server):
    """The operator's whole path, and nothing but the failed mask is learned twice."""
    write_corpus(tmp_path / "corpus")
    root = tmp_path / "run"
    (root / "selection" / "00001.parquet").mkdir(parents=True)
    parameters = {
        "root": f"{root}",
        "source": f'{{"path": "{tmp_path / "corpus"}"}}',
        "plan": '{"rows_per_shard": 20}',
        "embedding": '{"method": "lexical", "dimension": 32}',
        "selection": '{"steps": 5, "ratio": 0.2}',
        "publication": '{"license": "other", "dry_run": true}',
    }
    given = [part for key, value in parameters.items() for part in ("--param", f"{key}={value}")]
    start = ("-m", "prefect", "deployment", "run")

    refused = server.run(*start, "rebuild/local", "--param", "root=x", "--param", 'plan={"a":1}')
    assert refused.returncode != 0
    assert "Additional properties" in refused.stdout + refused.stderr

    first = server.run(*start, "rebuild/local", *given, "--watch")
    assert first.returncode == 1, first.stdout + first.stderr
    inspected = server.run("-c", LAST_MESSAGE).stdout
    assert "selection: 1 of 3 shards failed: 00001" in inspected, first.stdout + inspected
    assert not (root / "subset").exists()
    kept = [(root / "selection" / f"{shard:05d}.parquet").stat().st_ino for shard in (0, 2)]

    (root / "selection" / "00001.parquet").rmdir()
    second = server.run(*start, "rerun-failed/local", "--param", f"root={root}", "--watch")
    assert second.returncode == 0, (
        second.stdout + second.stderr + server.run("-c", LAST_MESSAGE).stdout
    )
    assert [(root / "selection" / f"{shard:05d}.parquet").stat().st_ino for shard in (0, 2)] == kept
    selected = pq.read_table(root / "subset").num_rows
    assert selected == 12
    assert server.run("-c", SHARD_ARTIFACT).stdout.split() == ["done"] * 18  # 3 shards, 6 stages
    for name in ("report.html", "composition.duckdb", "published.json"):
        assert (root / name).is_file(), name


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_what_is_asked_is_done_and_nothing_else(tmp_path, server):
    """`shards`, `force` and the retry of a failed flow run, by a worker."""
    write_corpus(tmp_path / "corpus")
    root = tmp_path / "run"
    settings = {
        "source": {"path": str(tmp_path / "corpus")},
        "plan": {"rows_per_shard": 20},
        "embedding": {"method": "lexical", "dimension": 32},
        "selection": {"steps": 5},
    }
    finish(root, parse_settings(settings), "selection")
    masks = [root / "selection" / f"{shard:05d}.parquet" for shard in range(3)]

    def inodes() -> list[int]:
        return [path.stat().st_ino if path.is_file() else 0 for path in masks]

    def learn(*parameters: str) -> subprocess.CompletedProcess[str]:
        flags = [part for item in (f"root={root}", *parameters) for part in ("--param", item)]
        command = ("-m", "prefect", "deployment", "run", "learn-masks/gpu", *flags, "--watch")
        return server.run(*command)

    first, contents = inodes(), [path.read_bytes() for path in masks]
    assert learn().returncode == 0
    assert inodes() == first, "nothing was left to do"
    assert learn("shards=[1]", "force=true").returncode == 0
    second = inodes()
    assert [now == then for now, then in zip(second, first, strict=True)] == [True, False, True]

    masks[0].unlink()
    masks[2].unlink()
    assert learn("shards=[0]").returncode == 0
    assert inodes() == [masks[0].stat().st_ino, second[1], 0]

    masks[2].mkdir()
    third = inodes()
    failed = learn()
    assert failed.returncode == 1, failed.stdout
    masks[2].rmdir()
    name = server.run("-c", FAILED_RUN, str(root)).stdout.strip()
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

    A second `datamask deploy` leaves it on, and a schedule that was switched on too.
    """
    assert server.run("-c", SWITCH_ON).returncode == 0
    server.deploy()
    resource = {"prefect.resource.id": "datamask.source.x", "datamask.root": "/runs/of-an-event"}
    emit = ("-m", "prefect", "event", "emit", "datamask.source.grew")
    emitted = server.run(*emit, "--resource", json.dumps(resource))
    assert emitted.returncode == 0, emitted.stderr
    deadline = time.monotonic() + 120
    while not (shown := server.run("-c", EXTENDING).stdout) and time.monotonic() < deadline:
        time.sleep(1)
    assert shown.split() == ["/runs/of-an-event", "1", "True"]


SWITCH_ON = """
from prefect.client.orchestration import get_client
with get_client(sync_client=True) as client:
    client.resume_automation(client.read_automations_by_name("datamask-extend")[0].id)
    weekly = client.read_deployment_by_name("extend/weekly")
    (schedule,) = weekly.schedules
    client.update_deployment_schedule(weekly.id, schedule.id, active=True)
"""

EXTENDING = """
from prefect.client.orchestration import get_client
with get_client(sync_client=True) as client:
    weekly = client.read_deployment_by_name("extend/weekly")
    for run in client.read_flow_runs():
        if run.created_by and run.created_by.type == "AUTOMATION":
            print(run.parameters["root"], len(weekly.schedules), weekly.schedules[0].active)
"""

FAILED_RUN = """
import sys
from prefect.client.orchestration import get_client
with get_client(sync_client=True) as client:
    for run in client.read_flow_runs():
        if run.state.is_failed() and run.parameters["root"] == sys.argv[1]:
            print(run.id)
"""

SHARD_ARTIFACT = """
import json
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from prefect.client.schemas.sorting import ArtifactSort
with get_client(sync_client=True) as client:
    newest = client.read_artifacts(
        artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=["shards"])),
        sort=ArtifactSort.UPDATED_DESC,
        limit=1,
    )
    for row in json.loads(newest[0].data):
        print(*[state for name, state in row.items() if name != "shard"])
"""

LAST_MESSAGE = """
from prefect.client.orchestration import get_client
with get_client(sync_client=True) as client:
    for run in client.read_flow_runs():
        print(run.name, run.state.type, run.state.message)
"""
