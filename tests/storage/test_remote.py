"""A run in an object store: the same bytes as on a disk, whole or not at all, by every command."""

import re
from itertools import chain
from pathlib import Path

import pytest
from click.testing import CliRunner

from datamask.cli.main import cli
from datamask.config.compute import Compute
from datamask.config.inputs import Source
from datamask.errors import CorruptFileError, RunError, StorageError, exit_status
from datamask.execution.attempts import run_unit
from datamask.execution.pipeline import rebuild, run_stage
from datamask.execution.status import run_status
from datamask.execution.verification import verify
from datamask.planning.plan import plan_run
from datamask.runs.opening import open_run, run_storage
from tests import finished
from tests.storage.conftest import Store, with_tokens

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

TIMED = ("composition.duckdb", "report.html", "records/")
"""Outputs that tell how long something took."""


@pytest.fixture(scope="module")
def finished_run(s3: Store, source: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run made in the store by a machine whose mirror is gone."""
    url = "s3://runs/finished/mine"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATAMASK_CACHE", str(tmp_path_factory.mktemp("gone")))
        rebuild(url, with_tokens(source))
    return url


def test_the_same_bytes_as_on_a_disk(s3, finished_run, original):
    """Every file of the local run is in the store, and none else but notes; equal but for times."""
    here = {p.relative_to(original).as_posix() for p in original.rglob("*") if p.is_file()}
    there = {name for name in s3.names(finished_run) if not name.startswith("receipts/")}
    assert there == here
    same = [name for name in here if not name.startswith(TIMED)]
    assert len(same) > 40
    for name in same:
        assert s3.read(finished_run, name) == (original / name).read_bytes(), name


def test_status_downloads_no_outputs(s3, machine, source):
    """On a new machine, the number of requests does not depend on the number of finished shards."""
    url = "s3://runs/many"
    plan_run(url, finished.settings(source, plan={"rows_per_shard": 12}))
    costs = []
    for name, expected in (("before", ["0", "0", "12"]), ("after", ["12", "0", "0"])):
        machine(name)
        s3.proxy.requests.clear()
        lines = CliRunner().invoke(cli, ["status", url]).output.splitlines()
        costs.append(len(s3.proxy.requests))
        assert next(line.split()[1:4] for line in lines if line.startswith("scores")) == expected
        fetched = {path.name for path in run_storage(url).root.rglob("*") if path.is_file()}
        assert fetched == {"run.json", "plan.parquet"}
        run_stage(open_run(url), "scores", Compute(workers=2))
    assert costs[1] < costs[0] + 5, "12 shards of scores, 1 request each would be more"


@pytest.mark.slow
def test_without_notes_the_receipts_themselves_are_read(s3, source, machine):
    """Notes are not state: deleted or of another version, finished work is still known."""
    url = "s3://runs/unnoted"
    plan_run(url, finished.settings(source))
    run_stage(open_run(url), "scores", Compute())
    notes = [name for name in s3.names(url) if name.startswith("receipts/")]
    assert len(notes) == 3
    for name in notes:
        s3.client.delete_object(Bucket="runs", Key=f"unnoted/{name}")
    s3.write(url, notes[0], b"")  # right again, but the file is about to change
    s3.write(url, "scores/00000.parquet", b"not Parquet")
    machine("there")
    run = open_run(url)
    assert run.states("scores") == ["missing", "done", "done"]
    assert not {path.name for path in (run.root / "scores").glob("*")} - {"00000.parquet"}


def test_a_put_that_breaks_leaves_nothing(s3, source, machine, original):
    """The connection drops half-way through a shard's file: neither store nor mirror has it."""
    url = "s3://runs/broken/mine"
    plan_run(url, finished.settings(source))
    s3.proxy.cut = re.compile(rb"^PUT /runs/broken/mine/scores/00001\.parquet")
    try:
        for shard in (0, 2):
            run_unit(open_run(url), "scores", shard, Compute())
        with pytest.raises(StorageError, match=r"scores/00001\.parquet") as caught:
            run_unit(open_run(url), "scores", 1, Compute())
    finally:
        s3.proxy.cut = None
    assert exit_status(caught.value) == 75
    assert s3.proxy.cuts > 1, "the client tries again"
    names = s3.names(url)
    assert "scores/00001.parquet" not in names
    assert {"scores/00000.parquet", "scores/00002.parquet"} <= {*names}
    run = open_run(url)
    assert run.remaining("scores") == [1]
    assert not run.local_path("scores", 1).exists(), "what is not in the store is nowhere"
    run_stage(run, "scores", Compute())
    assert s3.read(url, "scores/00001.parquet") == (original / "scores/00001.parquet").read_bytes()


@pytest.mark.slow
def test_a_damaged_object_is_found_and_made_again(s3, source, machine, original):
    """`verify` reads the store, not the mirror; a damaged input stops work by name."""
    url = "s3://runs/damaged/mine"
    run = finished.finish(url, finished.settings(source), "embeddings")
    assert verify(run).corrupt == ()
    name = "quality/00002.parquet"
    data = bytearray(s3.read(url, name))
    data[100] ^= 1  # the footer is as it was, so the receipt is too
    s3.write(url, name, bytes(data))
    machine("another")
    with pytest.raises(CorruptFileError, match=f"{url}/{name}: SHA-256"):
        run_unit(open_run(url), "embeddings", 2, Compute(), force=True)
    result = CliRunner().invoke(cli, ["verify", url])
    assert isinstance(result.exception, CorruptFileError)
    assert f"{url}/{name}: SHA-256" in result.output
    assert f"{name}.corrupt" in s3.names(url)
    run_stage(open_run(url), "quality", Compute())
    assert s3.read(url, name) == (original / name).read_bytes()
    assert verify(open_run(url)).corrupt == ()


@pytest.mark.slow
def test_commands_take_a_url(s3, finished_run, machine, original, tmp_path):
    """status, query, rerun-failed, compare and report, on a machine with an empty mirror."""
    machine("commands")

    def ask(*arguments: str) -> str:
        result = CliRunner().invoke(cli, list(arguments), catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    assert "120 documents in 3 shards" in ask("status", finished_run)
    sql = "select count(*) as n from documents where selected"
    assert ask("query", finished_run, sql, "--format", "json") == '{"n":30}\n'
    assert f"subset       {finished_run}/subset" in ask("rerun-failed", finished_run)
    page = tmp_path / "page.html"
    ask("compare", finished_run, str(original), "-o", str(page))
    assert page.stat().st_size > 1000
    assert f"report    {finished_run}/report.html" in ask("report", finished_run)
    assert s3.writes(finished_run)["report.html"] == 2


def test_a_local_copy_of_another_version_is_not_used(s3, source, machine):
    """A file that changed in the store or in the mirror is fetched again."""
    url = "s3://runs/versions"
    for text in ("first", "second"):
        s3.write(url, "report/note.txt", text.encode())
        storage = run_storage(url)
        path = storage.fetch("report/note.txt")
        assert path.read_text() == text
        path.write_text("by hand")
        assert storage.fetch("report/note.txt").read_text() == text
    s3.client.delete_object(Bucket="runs", Key="versions/report/note.txt")
    assert not run_storage(url).fetch("report/note.txt").exists()


@pytest.mark.slow
def test_a_run_begun_on_disk_goes_on_in_the_store(s3, source, machine, original):
    """A folder that was copied there object by object, as by `aws s3 sync`, is a run."""
    url = "s3://runs/copied/mine"
    for path in original.rglob("*"):
        if path.is_file():
            s3.write(url, path.relative_to(original).as_posix(), path.read_bytes())
    assert {*chain(*run_status(open_run(url)).values())} == {"done"}


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("s3://key:secret@runs/x", "environment"),
        ("hf://datasets/me/x", "object store"),
        ("https://example.org/x", "object store"),
        ("s3://runs/../x", "plain names"),
        ("s3://runs/a//b", "plain names"),
        ("s3://runs/a*", "plain names"),
        ("s3://runs/a,b", "plain names"),
        ("s3://", "plain names"),
        ("s3:/runs/x", "two slashes"),
        ("nosuch://runs/x", "not a place for a run"),
        ("s3://no-such-bucket/x", "no such bucket"),
    ],
)
def test_an_unsuitable_url_is_refused(s3, source, machine, url, problem):
    """One line, before any work; no password is repeated."""
    with pytest.raises(RunError, match=problem) as caught:
        plan_run(url, finished.settings(source))
    assert "secret" not in str(caught.value)


def test_a_run_inside_its_source_is_refused(s3, source, machine):
    """Its files would count as input the next time."""
    for path in source.iterdir():
        s3.write("s3://runs/input", path.name, path.read_bytes())
    inside = finished.settings(Path("s3://runs/input"))
    inside = inside.model_copy(update={"source": Source(path="s3://runs/input")})
    with pytest.raises(RunError, match=r"inside source\.path"):
        plan_run("s3://runs/input/run", inside)


@pytest.mark.slow
def test_no_secret_is_in_the_mirror_or_the_store(s3, finished_run, machine):
    """Credentials stay in the environment."""
    cache = machine("secrets")
    verify(open_run(finished_run))
    for path in cache.rglob("*"):
        assert path.is_dir() or b"s3-loopback-secret" not in path.read_bytes()
    # The others are those of a run on a disk: test_the_same_bytes_as_on_a_disk.
    for name in filter(lambda name: name.startswith((*TIMED, "receipts/")), s3.names(finished_run)):
        assert b"s3-loopback-secret" not in s3.read(finished_run, name), name


@pytest.mark.slow
def test_a_mirror_keeps_to_its_size_limit(s3, source, machine, original):
    """Evicted files are fetched again when needed; the result is the same."""
    url = "s3://runs/small/mine"
    finished.finish(url, finished.settings(source), "selection", Compute(mirror_bytes=0))
    kept = {
        p.relative_to(run_storage(url).root).as_posix()
        for p in run_storage(url).root.rglob("*")
        if p.is_file()
    }
    assert kept <= {"run.json", "plan.parquet"}
    for unit in range(3):
        name = f"selection/{unit:05d}.parquet"
        assert s3.read(url, name) == (original / name).read_bytes()
