"""Publishing as a user does it: real processes, killed and started again, and read from outside."""

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.config.compute import Compute
from datamask.config.inputs import Source
from datamask.publishing.publish import publish
from datamask.runs.files import write_parquet
from datamask.runs.opening import open_run
from datamask.subset.write import PARQUET_OPTIONS
from tests.finished import corpus, finish, settings
from tests.hub.runs import NAME, SUBSET
from tests.hub.server import Fault, Hub, Xet
from tests.publishing.conftest import TOKEN

pytestmark = pytest.mark.usefixtures("undrawn")

PUBLISH = """
import logging, sys
from pathlib import Path
from datamask.config.compute import Compute
from datamask.publishing.publish import publish
from datamask.runs.opening import open_run
logging.basicConfig(level="INFO")
publish(open_run(Path(sys.argv[1])), Compute())
"""

WITHOUT_SAMPLE = """
from datamask.publishing import folder
real = folder.configurations
folder.configurations = lambda *given: real(*given)[:-1]
"""

LOAD = """
import datasets, json, sys
name, revision, *configs = sys.argv[1:]
loaded = [datasets.load_dataset(name, one, split="train", revision=revision) for one in configs]
print(json.dumps([[list(part["id"]), part.column_names] for part in loaded]))
"""


def start(hub: Hub, home: Path, *command: object) -> subprocess.Popen[str]:
    """A Python process that knows this Hub, and no other."""
    told = {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": TOKEN, "HF_HOME": str(home)}
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        env={**os.environ, **told, "HF_HUB_DISABLE_XET": "0" if hub.xet else "1"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finished(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return what a process that ends well printed and logged."""
    printed, logged = process.communicate()
    assert process.returncode == 0, logged
    return printed, logged


@pytest.mark.slow
def test_a_publication_that_is_killed_goes_on(hub, make_run, tmp_path, caplog):
    """Killed in the middle of the upload: no reader sees a part; then nothing is sent twice."""
    root = make_run(num_shards=9).root
    process = start(hub, tmp_path, "-c", PUBLISH, root)
    hub.after_uploads = (2, lambda: process.send_signal(signal.SIGKILL))
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    repository = hub.repositories[NAME]
    assert set(hub.files(NAME)) == {".gitattributes"}
    assert repository.tags == {}
    assert 2 <= sum(hub.received.values()) < 10, "the client sends five at a time"

    _, told = finished(start(hub, tmp_path, "-c", PUBLISH, root))
    assert "sending what is new of 11 files" in told, "progress is shown"
    assert sorted(hub.received.values()) == [1] * 10
    assert repository.tags == {"v1": repository.branches["main"]}
    assert len(repository.history()) == 2

    caplog.set_level(logging.INFO)
    publish(open_run(root), Compute())
    assert "already up to date" in caplog.text
    assert json.loads((root / "published.json").read_text())["new_commit"] is False
    assert len(repository.history()) == 2


@pytest.mark.slow
def test_xet_storage_takes_what_is_new(hub, make_run, tmp_path):
    """The client's own Xet uploads: whole files come out, nothing is stored twice."""
    run = make_run()
    texts = np.random.default_rng(0).integers(0, 256, (32_000, 256), dtype=np.uint8)
    hub.xet = Xet(tmp_path / "storage", run.root / "publication")
    hub.xet.storage.mkdir()
    publishing = ("-c", WITHOUT_SAMPLE + PUBLISH, run.root)

    def write(start: int) -> None:
        rows = [row.tobytes().hex() for row in texts[start:]]
        columns = {"text": rows, "id": [f"{row}" for row in range(start, 32_000)]}
        ours = {"quality": [0.5] * len(rows), "logit": [0.5] * len(rows), "shard": [0] * len(rows)}
        table = pa.table({**columns, **ours}, schema=SUBSET)
        path = run.path("subset", 0)
        write_parquet(
            path, SUBSET, [table], lambda n: run.make_receipt("subset", 0, n), **PARQUET_OPTIONS
        )

    write(0)
    hub.faults = [Fault("commit", 403)]
    process = start(hub, tmp_path / "home", *publishing)
    process.communicate()
    assert process.returncode == 1 and not hub.repositories[NAME].tags
    stored = hub.xet.size()
    assert stored > 1e6
    # From another machine, which does not remember what it sent.
    finished(start(hub, tmp_path / "other", *publishing))
    assert hub.xet.size() == stored, "the chunks were there already"
    folder = run.root / "publication"
    for path, content in hub.files(NAME, "v1").items():
        assert path == ".gitattributes" or content == (folder / path).read_bytes(), path
        if path.endswith(".parquet"):
            hub.xet.fetch(folder / path, tmp_path / "chunks.parquet")
            assert (tmp_path / "chunks.parquet").read_bytes() == content
    assert not {"batch", "put"} & set(hub.calls)

    write(40)
    finished(start(hub, tmp_path / "home", *publishing))
    assert hub.xet.size() - stored < 0.5 * stored, "most chunks are those of the first version"
    name = "data/default/train-00000-of-00003.parquet"
    assert hub.files(NAME, "v1")[name] == (folder / name).read_bytes()


def published_table(hub: Hub, folder: Path) -> pa.Table:
    """All rows of data/ at the tag."""
    folder.mkdir()
    for path, content in hub.files(NAME, "v1").items():
        if path.startswith("data/"):
            (folder / path.replace("/", "-")).write_bytes(content)
    return pq.read_table(folder).sort_by("id")


@pytest.mark.slow
def test_what_is_published_is_a_source_and_loads_in_one_line(hub, reading, tmp_path):
    """Round trip: published, selected from again at the pinned commit, loaded by name."""
    to = {"repository": NAME, "license": "odc-by"}
    chosen = settings(corpus(tmp_path / "source"), subset={"file_bytes": 4096}, publication=to)
    publish(finish(tmp_path / "run", chosen, "composition"), Compute())
    first = published_table(hub, tmp_path / "first")
    assert first.num_rows == 30

    source = Source(path=f"hf://datasets/{NAME}@v1/data")
    again = settings(Path(), selection={"ratio": 0.5}, subset={"column_prefix": "again_"})
    again = again.model_copy(update={"source": source})
    run = finish(tmp_path / "again", again, "subset")
    assert run.pinned_revisions["scores:source"] == hub.repositories[NAME].tags["v1"]
    second = pq.read_table(run.root / "subset")
    assert second.num_rows == 15
    ours = ["again_quality", "again_logit", "again_shard"]
    assert second.column_names == [*first.column_names, *ours]
    rows = {row["id"]: row for row in first.to_pylist()}
    assert all(rows[row["id"]] == row for row in second.drop_columns(ours).to_pylist())

    configs = ("default", "plain", "sample")
    printed, _ = finished(start(hub, tmp_path / "home", "-c", LOAD, NAME, "v1", *configs))
    loaded = dict(zip(configs, json.loads(printed), strict=True))
    assert all(columns == first.column_names for _, columns in loaded.values())
    ids = {name: sorted(ids) for name, (ids, _) in loaded.items()}
    assert ids["default"] == first["id"].to_pylist()
    plain = [row["id"] for row in first.to_pylist() if row["dump"] == "plain"]
    assert ids["plain"] == plain
    assert len(ids["sample"]) == 1 and set(ids["sample"]) < set(ids["default"])
