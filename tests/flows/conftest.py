"""Throw-away Prefect servers, and a tiny corpus with given embeddings."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.flows.server import Server

DIMENSION, ROWS = 8, 60


@pytest.fixture(scope="package")
def prefect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One server for all tests of this folder; the user's own database is not touched.

    It does not store events and the runs of tasks: no test reads them, and they are half its work.
    It has no pages, which take a sixth of its start.
    Heartbeats are off: with them, every flow run takes up to a second longer to end.
    """
    from prefect.settings import (
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
        PREFECT_HOME,
        PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED,
        PREFECT_SERVER_SERVICES_LATE_RUNS_ENABLED,
        PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED,
        PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_ENABLED,
        PREFECT_UI_ENABLED,
        temporary_settings,
    )
    from prefect.testing.utilities import prefect_test_harness

    home = tmp_path_factory.mktemp("prefect")
    unstored = (
        PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED,
        PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_ENABLED,
        PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED,
        PREFECT_SERVER_SERVICES_LATE_RUNS_ENABLED,
        PREFECT_UI_ENABLED,
    )
    settings = {PREFECT_HOME: home, PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}
    with (
        temporary_settings({**settings, **dict.fromkeys(unstored, False)}),
        prefect_test_harness(server_startup_timeout=120),
    ):
        yield


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Server, pools and workers as processes, with every deployment registered."""
    server = Server(tmp_path_factory.mktemp("services"))
    try:
        server.start()
        server.deploy()
        yield server
    finally:
        server.stop()


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Sixty documents in layout `features`."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(ROWS, DIMENSION)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    table = pa.table(
        {
            "chunk_id": [f"d{number:03d}" for number in range(ROWS)],
            "quality_score": generator.random(ROWS),
            "feature_arr": pa.array(vectors.tolist(), pa.list_(pa.float32())),
        }
    )
    pq.write_table(table, folder / "part.parquet", row_group_size=20)
    return folder
