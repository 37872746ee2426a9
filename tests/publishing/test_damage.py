"""Files are compared with the checksum of the day when they were written, then published."""

import itertools
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import fsspec
import pytest

from datamask.config.compute import Compute
from datamask.errors import CorruptFileError
from datamask.execution.pipeline import run_stage
from datamask.execution.verification import verify
from datamask.planning.plan import plan_run
from datamask.publishing.folder import write_folder
from datamask.publishing.publish import publish
from datamask.runs.opening import open_run
from datamask.runs.run import Run
from tests.conftest import mostly_nightly
from tests.finished import corpus, settings, up_to
from tests.hub.runs import NAME
from tests.hub.server import Hub

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

PUBLISHED = [
    "subset/train-00001-of-00005.parquet",
    "documents/00002.parquet",
    "composition.duckdb",
    "report/captions.json",
    "pictures/tradeoff.png",
    "mask_model/model.json",
    "mask_model/model.safetensors",
]
"""A file of each kind whose bytes, or figures, readers of the dataset get."""

TIMED = ("README.md", "pictures/")
"""Files of the repository that tell how long the work took, or where it was done."""

numbers = itertools.count()


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of objects are kept by this test alone."""
    monkeypatch.setenv("DATAMASK_CACHE", str(tmp_path / "cache"))


@dataclass(frozen=True)
class Original:
    """A run up to its report, and the files that it publishes."""

    root: Path
    files: dict[str, bytes]

    def copy(self, folder: Path, kind: str) -> Run:
        """A copy of the run, on the disk or in an object store."""
        if kind == "disk":
            return open_run(shutil.copytree(self.root, folder / "run"))
        url = f"memory://damage{next(numbers)}/run"
        store = fsspec.filesystem("memory")
        for path in filter(Path.is_file, self.root.rglob("*")):
            store.pipe(f"{url}/{path.relative_to(self.root)}", path.read_bytes())
        return open_run(url)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    """Finished but for its publication."""
    folder = tmp_path_factory.mktemp("damage")
    to = {"repository": NAME, "license": "mit", "include": ["scores", "mask_model"]}
    limits = {"selection": {"scope": "corpus"}, "subset": {"file_bytes": 4096}}
    chosen = settings(corpus(folder / "source"), publication=to, **limits)
    run = plan_run(folder / "run", chosen, publishing=False)
    for stage in up_to(run, "report"):
        run_stage(run, stage, Compute())
    publication = run.settings.publication
    assert publication
    files = {file.path: file.source.read_bytes() for file in write_folder(run, publication)}
    shutil.rmtree(run.root / "publication")
    return Original(run.root, {n: data for n, data in files.items() if not n.startswith(TIMED)})


def flip(path: Path | str) -> None:
    """Change one bit in the middle of a file; a local one keeps its time."""
    with fsspec.open(str(path), "rb") as file:
        data = bytearray(file.read())
    data[len(data) // 2] ^= 1
    times = os.stat(path) if isinstance(path, Path) else None
    with fsspec.open(str(path), "wb") as file:
        file.write(bytes(data))
    if times:
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def relaunch(run: Run) -> None:
    """Do what the user does next: make the missing file, then publish."""
    run = open_run(run.address)
    for stage in up_to(run, "publication"):
        run_stage(run, stage, Compute())


def published(hub: Hub) -> dict[str, bytes]:
    """The tagged files, as `Original.files`."""
    files = hub.files(NAME, "v1")
    return {n: data for n, data in files.items() if not n.startswith((*TIMED, ".git"))}


@pytest.mark.parametrize(
    ("name", "kind"),
    mostly_nightly(
        [(PUBLISHED[1], "store")],
        itertools.product(PUBLISHED, ("disk", "store", "copy")),
    ),
)
def test_a_flipped_bit_is_not_published(original, hub, tmp_path, name, kind):
    """The message names the file, nothing reaches the Hub, and a relaunch makes the file again.

    An object may be whole while this machine's `copy` of it has rotted; it may be fetched again.
    """
    run = original.copy(tmp_path, kind)
    flip(run.fetch(run.root / name) if kind == "copy" else f"{run.address}/{name}")
    try:
        publish(run, Compute())
    except CorruptFileError as error:
        assert name in str(error) and "\n" not in str(error)
        assert hub.calls == []
    else:
        assert kind == "copy"
    if kind == "store":
        verify(run)
    relaunch(run)
    assert published(hub) == original.files


@pytest.mark.parametrize(
    ("configuration", "kind"),
    mostly_nightly(
        [("sample", "disk")],
        itertools.product(("sample", "scores"), ("disk", "store")),
    ),
)
def test_a_damaged_file_of_the_publication_is_made_again(
    original, hub, tmp_path, configuration, kind
):
    """Files of a dry run are as suspect as the rest."""
    run = original.copy(tmp_path, kind)
    publication = run.settings.publication
    assert publication
    for file in write_folder(run, publication):
        if file.path.startswith(configuration):
            flip(file.source)
    publish(open_run(run.address), Compute())
    assert published(hub) == original.files
