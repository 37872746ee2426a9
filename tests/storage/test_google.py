"""Tests on Google Cloud Storage, as far as gcsfs and a loopback server show."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from datamask.config.compute import Compute
from datamask.execution.pipeline import run_stage
from datamask.planning.plan import plan_run
from datamask.runs.opening import open_run
from datamask.storage.object_store import ObjectStore, has_conditions
from tests import finished
from tests.storage.google import GoogleStorage

pytest.importorskip("gcsfs")


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[GoogleStorage]:
    """A server, and this process's machine."""
    server = GoogleStorage()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("DATAMASK_CACHE", str(tmp_path / "cache"))
    import gcsfs

    gcsfs.GCSFileSystem.clear_instance_cache()
    yield server
    server.shutdown()


def test_an_upload_can_depend_on_a_generation(google):
    """Created once; replaced only while it is what was seen."""
    store = ObjectStore("gs://runs/prefix")
    assert has_conditions(store.url)
    first = store.replace("locks/x", b"one", None)
    assert first is not None
    assert store.replace("locks/x", b"two", None) is None
    second = store.replace("locks/x", b"three", first)
    assert second is not None
    assert store.replace("locks/x", b"four", first) is None
    assert store.read("locks/x") == b"three"
    assert "0" in google.conditions
    assert first.version in google.conditions


def test_a_run_on_google_storage(google, source, tmp_path, monkeypatch):
    """The bytes of a local run; another machine finds it done; no lease is left."""
    run = plan_run("gs://runs/deep/mine", finished.settings(source))
    run_stage(run, "scores", Compute())
    local = plan_run(tmp_path / "local" / "mine", finished.settings(source))
    run_stage(local, "scores", Compute())
    for shard in range(3):
        content, _ = google.objects[f"deep/mine/scores/{shard:05d}.parquet"]
        assert content == local.path("scores", shard).read_bytes()
    monkeypatch.setenv("DATAMASK_CACHE", str(tmp_path / "other"))
    assert open_run("gs://runs/deep/mine").states("scores") == ["done"] * 3
    assert not [name for name in google.objects if "locks" in name]
