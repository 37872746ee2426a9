"""Engine `ray`: what it asks for, and a cluster that loses a node."""

import importlib.util
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

from datamask.config.compute import Compute
from datamask.config.loading import parse_settings
from datamask.errors import SettingsError
from datamask.runs.opening import open_run
from datamask.runs.records import read_record
from tests.faults.campaign import make_case
from tests.faults.comparison import contents
from tests.flows.server import family

# Not imported for it: that takes seconds in every worker of the tests.
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("prefect_ray") is None, reason="datamask-pipeline[ray] is missing"
)
SHARDS, NODES = 6, 3


def test_what_ray_cannot_run_is_refused(monkeypatch):
    """An address where nobody listens, and a folder that is another one on each node."""
    from flows.orchestration.task_runners import task_runner

    for root, address, problem in (
        ("/run", "127.0.0.1:1", "127.0.0.1:1: no Ray there"),
        ("/run", "ray://localhost:no", "ray://localhost:no: no Ray there"),
        ("runs/x", "auto", "runs/x is relative, and nodes differ"),
    ):
        monkeypatch.setenv("RAY_ADDRESS", address)
        with (
            pytest.raises(SettingsError, match=problem),
            task_runner("selection", Path(root), Compute(engine="ray")),
        ):
            pass


@pytest.mark.parametrize(
    ("compute", "stage", "slots"),
    [
        ({}, "selection", 2),  # a GPU each, where a node has some
        ({}, "scores", 12),  # and none for what is not computed on one
        ({"device": "cpu"}, "selection", 12),
        ({"task_cpus": 3}, "scores", 3),  # 2 on the one, 1 on the other
        ({"task_cpus": 9}, "scores", 0),
    ],
)
def test_requests_fit_nodes(compute, stage, slots):
    """Tasks at once on a machine of 8 CPUs and 2 GPUs beside one of 4 CPUs."""
    from flows.orchestration.task_runners import ray_request, slots_of

    nodes = [{"CPU": 8.0, "GPU": 2.0}, {"CPU": 4.0}]
    request = ray_request(stage, parse_settings(compute, Compute), nodes)
    assert sum(slots_of(node, request) for node in nodes) == slots


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("prefect")
def test_a_cluster_that_loses_a_node_makes_the_files_of_one_process(tmp_path, monkeypatch):
    """A node with all its processes is killed while it learns; its shard is learnt elsewhere."""
    from ray.cluster_utils import Cluster

    from flows.rebuild import rerun_failed

    case = make_case(tmp_path / "alone", 0, shards=SHARDS, steps=300, tolerance=0)
    root = tmp_path / "ray" / "run"
    root.mkdir(parents=True)
    for name in ("run.json", "plan.parquet"):
        shutil.copy(case.reference / name, root / name)
    shutil.copytree(case.reference / "records", root / "records")
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    try:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(NODES)]
        raylets = [node.all_processes["raylet"][0].process.pid for node in nodes]
        killed: list[int] = []
        killer = threading.Thread(target=kill_one, args=(root, raylets, killed))
        killer.start()
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        state = rerun_failed(root, compute=Compute(engine="ray"), return_state=True)
        killer.join()
    finally:
        cluster.shutdown()
    assert state.is_completed(), state.message
    assert killed, "no node was killed while it learned"
    assert contents(root) == contents(case.reference)
    run = open_run(root)
    records = [read_record(run, "selection", shard) for shard in range(SHARDS)]
    attempts = [record.attempts for record in records if record]
    assert attempts[killed[0]] == 2
    assert sum(attempts) == SHARDS + 1, "nothing else was begun twice"


def kill_one(root: Path, raylets: list[int], killed: list[int]) -> None:
    """Kill the first node on which a mask is being learnt; note the shard."""
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        for path in root.glob("locks/selection-*.lock"):
            try:
                holder = int(path.read_text().split()[1])
            except (OSError, IndexError):
                continue
            for raylet in raylets:
                members = family(raylet)
                if holder in members:
                    for pid in members:
                        os.kill(pid, signal.SIGKILL)
                    killed.append(int(path.stem.removeprefix("selection-")))
                    return
        time.sleep(0.05)
