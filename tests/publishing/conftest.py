"""A loopback Hub, and a small finished run to publish to it."""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub import HfFileSystem, constants

from datamask.runs.opening import open_run
from datamask.runs.run import Run
from tests.hub.runs import finished_run
from tests.hub.server import Hub

TOKEN = "hf_loopbackSecretToken"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A running Hub that accepts only our token; the client's own waits are cut short."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    real_sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: real_sleep(min(seconds, 0.005)))
    with Hub(tmp_path / "hub", token=TOKEN) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        yield server


@pytest.fixture
def reading(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The Hub that hf:// paths lead to; the client reads its address once, at import."""
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    template = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    HfFileSystem.clear_instance_cache()
    yield hub
    HfFileSystem.clear_instance_cache()


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Finished runs by how they were asked for; what a run says of itself names no folder."""
    return {"": tmp_path_factory.mktemp("templates")}


@pytest.fixture
def make_run(tmp_path: Path, templates: dict[str, Path]) -> Callable[..., Run]:
    """Makes finished runs in folders of their own."""
    number = iter(range(100))

    def make(*args: object, **options: object) -> Run:
        key = repr((args, sorted(options.items())))
        if key not in templates:
            templates[key] = templates[""] / str(len(templates))
            finished_run(templates[key], *args, **options)
        return open_run(shutil.copytree(templates[key], tmp_path / f"run{next(number)}"))

    return make
