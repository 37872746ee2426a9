"""Publishing with the unmodified client against a Hub on loopback."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import DatasetCard, hf_hub_download

from datamask.config.compute import Compute
from datamask.errors import HubUnavailableError, PublicationError, RunError
from datamask.publishing import retries, upload
from datamask.publishing.publish import publish
from datamask.runs.receipt import read_receipt
from datamask.runs.run import Run
from tests.hub.runs import NAME, write_subset
from tests.hub.server import Fault, Hub

MakeRun = Callable[..., Run]


@pytest.fixture(autouse=True)
def _on_loopback(hub: Hub) -> None:
    """No test here talks to any other Hub."""


def send(run: Run, **options: object) -> list[float]:
    """Publish without waiting; the waits that were asked for."""
    waits: list[float] = []
    publish(run, Compute(), sleep=waits.append, **options)
    return waits


def folder(run: Run) -> dict[str, bytes]:
    """The publication folder, by path."""
    root = run.root / "publication"
    paths = [path for path in root.rglob("*") if path.is_file()]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def remote(hub: Hub, revision: str = "main") -> dict[str, bytes]:
    """The repository's files without the one the Hub itself makes."""
    files = hub.files(NAME, revision)
    return {path: content for path, content in files.items() if path != ".gitattributes"}


def test_what_is_published_is_what_is_in_the_folder(make_run: MakeRun, hub: Hub) -> None:
    """Files, tag, privacy, card and record are as the run says."""
    run = make_run()
    send(run)
    repository = hub.repositories[NAME]
    assert repository.private
    assert remote(hub) == folder(run)
    assert repository.tags == {"v1": repository.branches["main"]}
    assert len(repository.commits) == 2, "one commit beside the Hub's first"
    assert run.state("publication") == "done"
    record = json.loads((run.root / "published.json").read_text())
    assert record["commit"] == repository.branches["main"]
    assert record["new_commit"] is True
    assert [file["path"] for file in record["files"]] == sorted(folder(run))
    receipt = read_receipt(run.path("publication"))
    assert receipt.rows == 12
    assert receipt.metrics["files"] == 5, "card, three data files, sample"
    card = DatasetCard(remote(hub)["README.md"].decode())
    assert card.data.license == "odc-by"


def test_publishing_again_changes_nothing(make_run: MakeRun, hub: Hub) -> None:
    """The second time there is no commit and no upload."""
    run = make_run()
    send(run)
    before, calls = dict(hub.repositories[NAME].commits), len(hub.calls)
    send(run)
    assert hub.repositories[NAME].commits == before
    assert {"commit", "put", "tag", "batch"}.isdisjoint(hub.calls[calls:])
    assert json.loads((run.root / "published.json").read_text())["new_commit"] is False


def test_a_dry_run_shows_what_would_change(make_run: MakeRun, hub: Hub) -> None:
    """The same folder is written, nothing is sent, and every file's fate is told."""
    dry, real = make_run(dry_run=True), make_run()
    send(dry)
    assert NAME not in hub.repositories
    record = json.loads((dry.root / "published.json").read_text())
    assert record["dry_run"] is True
    assert "commit" not in record
    assert record["changes"] == {"add": sorted(folder(dry)), "replace": [], "delete": []}
    assert dry.state("publication") == "done"
    send(real)
    assert folder(dry) == folder(real)
    hub.add(NAME, {"data/default/train-00009-of-00010.parquet": b"old"})
    write_subset(dry, 1, word="other")
    before = dict(hub.repositories[NAME].branches)
    send(dry)
    assert json.loads((dry.root / "published.json").read_text())["changes"] == {
        "add": [],
        "replace": ["README.md", "data/default/train-00001-of-00003.parquet"],
        "delete": ["data/default/train-00009-of-00010.parquet"],
    }
    assert hub.repositories[NAME].branches == before


def test_a_dry_run_needs_no_hub(
    make_run: MakeRun, hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a token nobody is called; a Hub that is away is told, and is no failure."""
    caplog.set_level("INFO")
    run = make_run(dry_run=True)
    hub.faults = [Fault("info", 503, times=99)]
    send(run)
    assert "not compared with the Hub: ada/subset: checking" in caplog.text
    calls = len(hub.calls)
    monkeypatch.delenv("HF_TOKEN")
    send(run)
    assert len(hub.calls) == calls
    assert "not compared with the Hub: HF_TOKEN is not set" in caplog.text


@pytest.mark.parametrize("token", ["", "hf_wrong"])
def test_a_dry_run_tells_that_it_would_be_refused(
    make_run: MakeRun, hub: Hub, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    """What publishing would be refused for is told beforehand, and the folder is there to see."""
    hub.add(NAME, {"model.bin": b"x"})
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    run = make_run(dry_run=True)
    send(run)
    told = json.loads((run.root / "published.json").read_text())["refused"]
    assert ("HF_TOKEN" if token else "not published by datamask") in told
    assert "README.md" in folder(run)


def test_told_to_a_repository_of_somebody_else_is_taken(make_run: MakeRun, hub: Hub) -> None:
    """`overwrite` replaces what has our names and leaves the rest."""
    hub.add(NAME, {"README.md": b"# Mine\n", "model.bin": b"x"})
    run = make_run(overwrite=True)
    send(run)
    assert remote(hub, "v1") == folder(run) | {"model.bin": b"x"}


def test_only_a_changed_file_is_sent_again_and_the_tag_moves(make_run: MakeRun, hub: Hub) -> None:
    """Of three data files, the one that changed goes up; the tag follows the new commit."""
    run = make_run()
    send(run)
    first = hub.repositories[NAME].tags["v1"]
    hub.received.clear()
    write_subset(run, 1, word="other")
    send(run)
    assert sum(hub.received.values()) == 1
    assert remote(hub) == folder(run)
    assert hub.repositories[NAME].tags["v1"] == hub.repositories[NAME].branches["main"] != first


def test_stale_data_files_are_deleted_and_other_files_are_kept(make_run: MakeRun, hub: Hub) -> None:
    """A rebuild into fewer files leaves none of the old ones; a picture somebody added stays."""
    send(make_run(num_shards=4))
    hub.add(NAME, {"picture.png": b"png"})
    run = make_run(num_shards=2)
    send(run)
    assert remote(hub) == folder(run) | {"picture.png": b"png"}


def test_the_folder_drops_files_of_earlier_runs(make_run: MakeRun) -> None:
    """Whatever lies in publication/data beside the subset's files is removed."""
    run = make_run(dry_run=True)
    old = run.root / "publication" / "data" / "old" / "train-00000-of-00009.parquet"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"old")
    send(run)
    assert not old.exists()
    assert not old.parent.exists()
    assert set(folder(run)) == {"README.md", "sample/train-00000-of-00001.parquet"} | {
        f"data/default/train-{unit:05d}-of-00003.parquet" for unit in range(3)
    }


@pytest.mark.parametrize(
    "files",
    [{"model.bin": b"x"}, {"README.md": b"# Mine\n"}, {"README.md": b"---\ntags: [a]\n---\n"}],
)
def test_a_repository_of_somebody_else_is_refused(
    make_run: MakeRun, hub: Hub, files: dict[str, bytes]
) -> None:
    """Files without our card stop the publication before anything is sent."""
    hub.add(NAME, files)
    with pytest.raises(PublicationError, match="not published by datamask"):
        send(make_run())
    assert remote(hub) == files
    assert hub.repositories[NAME].tags == {}
    assert not hub.received


def test_a_public_repository_is_refused_for_a_private_run(make_run: MakeRun, hub: Hub) -> None:
    """Private data does not go where everybody reads."""
    hub.add(NAME, {".gitattributes": b""}, private=False)
    with pytest.raises(PublicationError, match="is public"):
        send(make_run())
    send(make_run(private=False))


def test_without_a_token_nothing_is_called(
    make_run: MakeRun, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing HF_TOKEN is said before any work."""
    monkeypatch.delenv("HF_TOKEN")
    run = make_run()
    with pytest.raises(PublicationError, match="HF_TOKEN: not set"):
        send(run)
    assert hub.calls == []
    assert not (run.root / "publication").exists()


def test_a_wrong_token_is_refused_at_once(
    make_run: MakeRun, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call says what to do, and there is no second."""
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(PublicationError, match="set HF_TOKEN to a valid token") as caught:
        send(make_run())
    assert "hf_wrong" not in str(caught.value)
    assert hub.calls == ["info"]


def test_a_stale_subset_is_not_published(make_run: MakeRun) -> None:
    """A missing file of the subset is named."""
    run = make_run()
    run.path("subset", 2).unlink()
    with pytest.raises(RunError, match=r"train-00002-of-00003\.parquet"):
        send(run)


CUT = 0
HEALING = [
    *(Fault(on, status) for on in ("create", "info", "tree", "refs") for status in (500, CUT)),
    *(Fault("preupload", status) for status in (503, 429, CUT)),
    *(Fault("batch", status) for status in (500, CUT)),
    *(Fault("put", status, skip=skip) for status in (500, CUT) for skip in (0, 2)),
    Fault("put", CUT, after=True),
    Fault("verify", 503),
    Fault("validate", 502),
    *(Fault("commit", status, after=after) for status in (500, 504, CUT) for after in (0, 1)),
    Fault("commit", 429, headers={"Retry-After": "7"}),
    Fault("commit", 429, headers={"RateLimit": '"api";r=0;t=55'}, times=2),
    Fault("commit", 412, times=2),
    *(Fault("tag", status, after=after) for status in (500, CUT) for after in (0, 1)),
]


@pytest.mark.parametrize("fault", HEALING, ids=str)
def test_transient_faults_heal(make_run: MakeRun, hub: Hub, fault: Fault) -> None:
    """After the fault everything is there, in one commit, and nothing was sent twice."""
    run = make_run()
    hub.faults = [fault]
    send(run)
    assert fault.times == 0, "the fault was not met"
    repository = hub.repositories[NAME]
    assert remote(hub) == folder(run)
    assert repository.tags == {"v1": repository.branches["main"]}
    assert len(repository.commits) == 2
    assert fault.on == "put" or set(hub.received.values()) == {1}


@pytest.mark.parametrize("on", ["info", "preupload", "put", "commit", "tag"])
def test_a_hub_that_says_nothing_is_not_waited_for(
    make_run: MakeRun, hub: Hub, monkeypatch: pytest.MonkeyPatch, on: str
) -> None:
    """The client has no time-out of its own; with ours, silence is a fault like others."""
    monkeypatch.setattr(retries, "SILENCE_SECONDS", 1.0)
    run = make_run()
    hub.faults = [Fault(on, hang=20)]
    start = time.perf_counter()
    send(run)
    assert time.perf_counter() - start < 15
    assert hub.faults[0].times == 0
    assert remote(hub, "v1") == folder(run)


@pytest.mark.parametrize(
    ("fault", "error", "told"),
    [
        (Fault("info", 403), PublicationError, "write access"),
        (Fault("commit", 401), PublicationError, "HF_TOKEN"),
        (Fault("commit", 403, message="Private storage limit reached"), PublicationError, "plan"),
        (Fault("batch", 403, message="storage limit"), PublicationError, "free storage"),
        (Fault("commit", 403), PublicationError, "write access"),
        (Fault("preupload", 404), PublicationError, "check publication.repository"),
        (Fault("tag", 403), PublicationError, "write access"),
        (Fault("commit", 500, times=99), HubUnavailableError, "after 3 attempts"),
        (Fault("commit", 412, times=99), HubUnavailableError, "after 3 attempts"),
        (Fault("tree", CUT, times=99), HubUnavailableError, "after 3 attempts"),
        (Fault("put", 503, times=99), HubUnavailableError, "after 3 attempts"),
    ],
    ids=str,
)
def test_lasting_faults_fail_cleanly(
    make_run: MakeRun, hub: Hub, fault: Fault, error: type[Exception], told: str
) -> None:
    """One clear line, the tag where it was, no token; and the next publication succeeds."""
    run = make_run()
    send(run)
    repository = hub.repositories[NAME]
    tag = repository.tags["v1"]
    write_subset(run, 0, word="other")
    hub.faults = [fault]
    if fault.on == "tag":
        del repository.tags["v1"]
    with pytest.raises(error, match=told) as caught:
        send(run, attempts=3)
    assert "\n" not in str(caught.value)
    assert hub.token not in f"{caught.value!r}"
    assert repository.tags.get("v1") == (None if fault.on == "tag" else tag)
    hub.faults = []
    send(run)
    assert remote(hub, "v1") == folder(run)


def test_a_tag_that_cannot_be_moved_stays(make_run: MakeRun, hub: Hub) -> None:
    """Moving is deleting and making anew; refused in between, readers keep the old version."""
    run = make_run()
    send(run)
    first = hub.repositories[NAME].tags["v1"]
    write_subset(run, 0, word="other")
    hub.faults = [Fault("tag", 403)]
    with pytest.raises(PublicationError, match="write access"):
        send(run)
    assert hub.repositories[NAME].tags == {"v1": first}


def test_an_answer_that_quotes_the_token_is_told_without_it(make_run: MakeRun, hub: Hub) -> None:
    """Whatever the Hub says, the token is not repeated."""
    hub.faults = [Fault("commit", 403, message=f"token {hub.token} may only read")]
    with pytest.raises(PublicationError, match=r"token \*\*\* may only read"):
        send(make_run())


def test_the_wait_follows_what_the_hub_asks_for(make_run: MakeRun, hub: Hub) -> None:
    """Retry-After and RateLimit are honoured, and waits without them are bounded."""
    hub.faults = [
        Fault("commit", 429, headers={"Retry-After": "7"}),
        Fault("commit", 429, headers={"RateLimit": '"api";r=0;t=55'}),
        Fault("commit", 500),
    ]
    waits = send(make_run())
    assert waits[:2] == [7.0, 55.0]
    assert 3.0 <= waits[2] <= 5.0
    assert len(waits) == 3


def test_a_commit_of_somebody_else_in_between_is_kept(make_run: MakeRun, hub: Hub) -> None:
    """The guarded commit is refused by the Hub, and made again on top of theirs."""
    run = make_run()
    send(run)
    write_subset(run, 0, word="other")
    hub.before["commit"] = lambda: hub.add(NAME, {"picture.png": b"png"})
    send(run)
    assert hub.calls.count("commit") == 3
    assert remote(hub, "v1") == folder(run) | {"picture.png": b"png"}


def test_a_repository_taken_by_somebody_in_between_is_refused(make_run: MakeRun, hub: Hub) -> None:
    """Files that appear while we send are not overwritten."""
    hub.before["commit"] = lambda: hub.add(NAME, {"README.md": b"# Mine\n"})
    with pytest.raises(PublicationError, match="not published by datamask"):
        send(make_run())
    assert remote(hub) == {"README.md": b"# Mine\n"}


def test_a_file_that_arrives_different_is_found_before_the_tag(make_run: MakeRun, hub: Hub) -> None:
    """Verification compares hashes, and names the file."""
    hub.corrupt = {"data/default/train-00001-of-00003.parquet"}
    with pytest.raises(PublicationError, match=r"train-00001-of-00003\.parquet differs"):
        send(make_run())
    assert hub.repositories[NAME].tags == {}


def padded(table: pa.Table, size: int) -> bytes:
    """A Parquet file of just that size, as the listing says."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    data = sink.getvalue().to_pybytes()
    footer = int.from_bytes(data[-8:-4], "little") + 8
    assert len(data) <= size
    return data[:-footer] + bytes(size - len(data)) + data[-footer:]


def fewer_rows(table: pa.Table, size: int) -> bytes:
    """A document is lost."""
    return padded(table.slice(1), size)


def other_values(table: pa.Table, size: int) -> bytes:
    """Every text is another."""
    return padded(table.set_column(0, "text", pa.array(["x"] * len(table))), size)


def no_parquet(table: pa.Table, size: int) -> bytes:
    """The file is nothing at all."""
    return bytes(size)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (fewer_rows, "has 3 rows, 4 were sent"),
        (other_values, "has other values"),
        (no_parquet, "cannot be read"),
    ],
)
def test_what_the_hub_serves_is_read_before_the_tag(
    make_run: MakeRun, hub: Hub, change: Callable[[pa.Table, int], bytes], told: str
) -> None:
    """Its listing says all is well, but a reader would get something else."""
    run = make_run(sample=0)
    path = min(run.root.glob("subset/*.parquet"), key=lambda path: (path.stat().st_size, path))
    name = f"data/default/{path.name}"
    hub.altered[name] = change(pq.read_table(path), path.stat().st_size)
    with pytest.raises(PublicationError, match=rf"{name}: {told}.*the tag was not set"):
        send(run)
    assert hub.repositories[NAME].tags == {}
    hub.altered.clear()
    send(run)
    assert remote(hub, "v1") == folder(run)


def test_many_files_go_through_a_staging_branch(
    make_run: MakeRun, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the bound main still moves once, nothing is sent twice, and the branch is gone."""
    monkeypatch.setattr(upload, "MOST_COMMIT_FILES", 3)
    monkeypatch.setattr(upload, "STAGING_COMMIT_FILES", 2)
    hub.page = 2
    run = make_run(num_shards=5)
    hub.faults = [Fault("commit", 0, after=True, skip=1), Fault("branch", 500)]
    send(run)
    repository = hub.repositories[NAME]
    assert remote(hub, "v1") == folder(run)
    assert set(repository.branches) == {"main"}
    assert len(repository.commits) == 6, "the Hub's first, four of two files, one on main"
    head = repository.branches["main"]
    assert len(repository.commits[repository.parents[head]]) == 1, "main moved in one step"
    assert set(hub.received.values()) == {1}


def test_an_interrupted_publication_sends_nothing_twice(make_run: MakeRun, hub: Hub) -> None:
    """What arrived before the failure is not sent by the next try."""
    run = make_run()
    hub.faults = [Fault("commit", 403)]
    with pytest.raises(PublicationError):
        send(run)
    assert sum(hub.received.values()) == 4
    send(run)
    assert sum(hub.received.values()) == 4


def test_what_is_published_can_be_downloaded_and_read(
    make_run: MakeRun, hub: Hub, tmp_path: Path
) -> None:
    """The client downloads the same bytes; pyarrow and DuckDB read the same rows."""
    run = make_run()
    send(run)
    name = "data/default/train-00000-of-00003.parquet"
    path = hf_hub_download(
        NAME,
        name,
        repo_type="dataset",
        revision="v1",
        endpoint=hub.endpoint,
        local_dir=tmp_path / "down",
    )
    assert Path(path).read_bytes() == folder(run)[name]
    data = run.root / "publication" / "data" / "default"
    ids = pq.read_table(data, columns=["id"])["id"].to_pylist()
    rows = duckdb.sql(f"SELECT id FROM '{data}/*.parquet' ORDER BY filename").fetchall()
    assert sorted(ids) == sorted(row[0] for row in rows)
    assert len(ids) == 12


def test_the_token_is_written_nowhere(
    make_run: MakeRun, hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither record, card, run.json nor log contains it."""
    run = make_run()
    caplog.set_level("DEBUG")
    send(run)
    for path in run.root.rglob("*"):
        assert path.is_dir() or hub.token.encode() not in path.read_bytes(), path
    assert hub.token not in caplog.text
