"""The whole of it with real server and worker processes: a shard fails, and is run again."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

REPOSITORY = Path(__file__).parents[2]
WORDS = ("the", "model", "value", "returns", "list", "when", "given", "and", "is", "used", "file")


def run(state: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A command as an operator types it, against the services under *state*."""
    port = (state / "port").read_text().strip() if (state / "port").exists() else "1"
    environment = {
        **os.environ,
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_HOME": str(state / "prefect"),
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        "COLUMNS": "2000",
    }
    return subprocess.run(
        [sys.executable, *command],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Path]:
    """Server, pools and workers on a free port, with every deployment registered."""
    state = tmp_path / "services"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    script = "deployments/services.py"
    try:
        for action in (["up", "--port", port], ["deploy"]):
            done = run(state, script, *action, "--state", str(state))
            assert done.returncode == 0, done.stdout + done.stderr
        yield state
    finally:
        stopped = run(state, script, "down", "--state", str(state))
        assert stopped.returncode == 0, stopped.stderr
    assert not list(state.glob("*.pid"))


def write_corpus(folder: Path) -> None:
    """Sixty short texts, different from each other."""
    folder.mkdir()
    texts = [
        " ".join(WORDS[(number * step + step) % len(WORDS)] for step in range(1, 40 + number))
        for number in range(60)
    ]
    table = pa.table({"id": [f"d{number:03d}" for number in range(60)], "text": texts})
    pq.write_table(table, folder / "part.parquet", row_group_size=20)


@pytest.mark.timeout(300)
def test_a_failed_shard_is_named_and_run_again(tmp_path: Path, services: Path) -> None:
    """The operator's whole path, and nothing but the failed mask is learned twice."""
    write_corpus(tmp_path / "corpus")
    root = tmp_path / "run"
    (root / "masks" / "00001.parquet").mkdir(parents=True)
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

    refused = run(services, *start, "rebuild/local", "--param", "root=x", "--param", 'plan={"a":1}')
    assert refused.returncode != 0
    assert "Additional properties" in refused.stdout + refused.stderr

    first = run(services, *start, "rebuild/local", *given, "--watch")
    assert first.returncode == 1, first.stdout + first.stderr
    log = run(services, "-m", "prefect", "flow-run", "ls", "--limit", "1").stdout
    inspected = run(services, "-c", LAST_MESSAGE).stdout
    assert "masks: 1 of 3 shards failed: 00001" in inspected, log + inspected
    assert not (root / "subset").exists()
    kept = [(root / "masks" / f"{shard:05d}.parquet").stat().st_ino for shard in (0, 2)]

    (root / "masks" / "00001.parquet").rmdir()
    second = run(services, *start, "rerun-failed/local", "--param", f"root={root}", "--watch")
    assert second.returncode == 0, (
        second.stdout + second.stderr + run(services, "-c", LAST_MESSAGE).stdout
    )
    assert [(root / "masks" / f"{shard:05d}.parquet").stat().st_ino for shard in (0, 2)] == kept
    selected = pq.read_table(root / "subset").num_rows
    assert selected == 12
    for name in ("report.html", "composition.duckdb", "published.json"):
        assert (root / name).is_file(), name


LAST_MESSAGE = """
from prefect.client.orchestration import get_client
with get_client(sync_client=True) as client:
    for run in client.read_flow_runs():
        print(run.name, run.state.type, run.state.message)
"""
