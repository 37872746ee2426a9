"""A run in an object store: the same bytes, whole or not at all, whichever process works."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from datamask.cli.main import cli
from datamask.config.compute import Compute
from datamask.config.inputs import Source
from datamask.config.outputs import Sweep
from datamask.errors import CorruptFileError, RunError, StorageError, exit_status
from datamask.execution.attempts import run_unit
from datamask.execution.pipeline import rebuild, run_stage
from datamask.execution.status import run_status
from datamask.execution.verification import verify
from datamask.planning.plan import plan_run
from datamask.report.sweep_files import run_sweep
from datamask.runs.files import replace_file
from datamask.runs.opening import open_run, run_storage
from datamask.storage.object_store import ObjectStore
from tests import finished
from tests.storage.conftest import LEASE_SECONDS, Store, process

pytestmark = pytest.mark.usefixtures("undrawn")

Machine = Callable[[str], Path]
TIMED = ("curves/", "composition.duckdb", "report.html", "logs/", "work_records/")
"""Outputs that tell how long something took."""

WORK = """
import os, sys, time
from datamask.config.compute import Compute
from datamask.execution import attempts, pipeline
from datamask.runs.opening import open_run
url, stop, meeting = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
real = attempts._work
def work(run, stage, unit, compute, force):
    print("begins", unit, flush=True)
    time.sleep(60 if unit == stop else 0.1)
    for folder in meeting:
        open(os.path.join(folder, str(os.getpid())), "w").close()
        while len(os.listdir(folder)) < 2:
            time.sleep(0.05)
    real(run, stage, unit, compute, force)
attempts._work = work
pipeline.run_stage(open_run(url), "scores", Compute())
print("ends", flush=True)
"""
"""Does stage `scores` of a run; at one shard it stops for a minute.

With a folder, no shard is done before two processes have begun one.
"""


def said(output: str) -> list[int]:
    """The shards that a process began."""
    return [int(line.split()[1]) for line in output.splitlines() if line.startswith("begins")]


@pytest.fixture(scope="module")
def original(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run on this machine's disk."""
    folder = tmp_path_factory.mktemp("local") / "mine"
    return rebuild(folder, finished.settings(source)).root


@pytest.fixture(scope="module")
def finished_run(s3: Store, source: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run made in the store by a machine that is no more."""
    url = "s3://runs/finished/mine"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATAMASK_CACHE", str(tmp_path_factory.mktemp("gone")))
        rebuild(url, finished.settings(source))
    return url


def test_the_same_bytes_as_on_a_disk(s3: Store, finished_run: str, original: Path) -> None:
    """Every file of the local run is in the store, and none else but notes; equal but for times."""
    here = {p.relative_to(original).as_posix() for p in original.rglob("*") if p.is_file()}
    there = {name for name in s3.names(finished_run) if not name.startswith("receipts/")}
    assert there == here
    same = [name for name in here if not name.removeprefix("checksums/").startswith(TIMED)]
    assert len(same) > 40
    for name in same:
        assert s3.read(finished_run, name) == (original / name).read_bytes(), name


def test_status_downloads_no_outputs(s3: Store, machine: Machine, source: Path) -> None:
    """On a new machine, knowing of many finished shards costs what knowing of none does."""
    url = "s3://runs/many"
    plan_run(url, finished.settings(source, plan={"rows_per_shard": 6}))
    costs = []
    for name, expected in (("before", "missing"), ("after", "done")):
        machine(name)
        s3.proxy.requests.clear()
        states = {stage.stage: stage.states for stage in run_status(open_run(url))}
        costs.append(len(s3.proxy.requests))
        assert states["scores"] == (expected,) * 20
        fetched = {path.name for path in run_storage(url).root.rglob("*") if path.is_file()}
        assert fetched == {"run.json", "plan.parquet"}
        run_stage(open_run(url), "scores", Compute(workers=2))
    assert costs[1] < costs[0] + 5, "20 shards of scores, 1 request each would be more"


def test_without_notes_the_receipts_themselves_are_read(
    s3: Store, source: Path, machine: Machine
) -> None:
    """Notes are no state: deleted or of another version, what is done is still known."""
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


def test_a_killed_machine_is_replaced_by_another(
    s3: Store, source: Path, machine: Machine, original: Path, tmp_path: Path
) -> None:
    """SIGKILL in a shard: another machine goes on when its lease has expired, redoing nothing."""
    url = "s3://runs/killed/mine"
    plan_run(url, finished.settings(source))
    victim = process(WORK, url, "1", cache=tmp_path / "victim")
    assert victim.stdout is not None
    while victim.stdout.readline() != "begins 1\n":
        pass
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    assert "locks/scores-00001" in s3.names(url)
    machine("other")
    finished.finish(url, open_run(url).settings, "quality")
    writes = s3.writes(url)
    outputs = [name for name in writes if re.match(r"(scores|quality)/", name)]
    assert len(outputs) == 6
    assert {writes[name] for name in outputs} == {1}
    for name in outputs:
        assert s3.read(url, name) == (original / name).read_bytes(), name
    assert not [name for name in s3.names(url) if name.startswith("locks/")]
    assert '"attempts": 2' in s3.read(url, "work_records/scores/00001.json").decode()


def test_a_machine_that_comes_back_does_not_wait_for_itself(
    s3: Store, source: Path, machine: Machine, tmp_path: Path
) -> None:
    """The lease of a dead process of the same mirror is taken over at once."""
    url = "s3://runs/same"
    plan_run(url, finished.settings(source))
    cache = tmp_path / "shared"
    victim = process(WORK, url, "0", cache=cache)
    assert victim.stdout is not None
    while victim.stdout.readline() != "begins 0\n":
        pass
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    machine("shared")
    run = open_run(url)
    start = time.monotonic()
    run_unit(run, "scores", 0, Compute())
    assert time.monotonic() - start < LEASE_SECONDS


def test_two_machines_do_every_shard_once(
    s3: Store, source: Path, machine: Machine, tmp_path: Path
) -> None:
    """Two processes at once share the shards out; each output is put once."""
    url = "s3://runs/two"
    run = plan_run(url, finished.settings(source, plan={"rows_per_shard": 15}))
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    both = [
        process(WORK, url, "-1", str(meeting), cache=tmp_path / name, lease=30)
        for name in ("one", "two")
    ]
    outputs = [one.communicate(timeout=120)[0] for one in both]
    assert all(output.endswith("ends\n") for output in outputs)
    done = [said(output) for output in outputs]
    assert sorted(done[0] + done[1]) == list(range(run.num_shards))
    assert {n: c for n, c in s3.writes(url).items() if n.startswith("scores/")} == {
        f"scores/{shard:05d}.parquet": 1 for shard in range(run.num_shards)
    }


def test_what_another_machine_did_just_now_is_seen(
    s3: Store, source: Path, machine: Machine
) -> None:
    """What this process knew a moment ago does not make it do a shard again."""
    url = "s3://runs/now"
    ours = plan_run(url, finished.settings(source))
    assert ours.states("scores") == ["missing"] * 3
    machine("theirs")
    run_stage(open_run(url), "scores", Compute())
    assert ours.remaining("scores", [0]) == []
    run_stage(ours, "scores", Compute())
    assert {s3.writes(url)[f"scores/{shard:05d}.parquet"] for shard in range(3)} == {1}


HOLD = """
import sys
from datamask.runs import locks
from datamask.runs.files import replace_file
from datamask.runs.opening import open_run
run = open_run(sys.argv[1])
with locks.unit_of_work(run.storage, "selection", 7):
    print("held", flush=True)
    sys.stdin.readline()
    try:
        with replace_file(run.root / "late.txt", run.storage) as temporary:
            temporary.write_text("too late")
    except Exception as error:
        print(type(error).__name__, flush=True)
"""


def test_who_was_away_too_long_puts_nothing(
    s3: Store, source: Path, machine: Machine, tmp_path: Path
) -> None:
    """A living lease is renewed and keeps others out; a stopped holder loses it, and notices."""
    from datamask.runs import locks

    url = "s3://runs/stopped"
    run = plan_run(url, finished.settings(source))
    holder = process(HOLD, url, cache=tmp_path / "holder")
    assert holder.stdout is not None
    assert holder.stdin is not None
    assert holder.stdout.readline() == "held\n"
    time.sleep(1.5 * LEASE_SECONDS)
    assert b'"beat": 1,' not in s3.read(url, "locks/selection-00007"), "not renewed"
    holder.send_signal(signal.SIGSTOP)
    start = time.monotonic()
    with locks.unit_of_work(run.storage, "selection", 7):
        assert time.monotonic() - start > LEASE_SECONDS / 2
        holder.send_signal(signal.SIGCONT)
        holder.stdin.write("go\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == "StorageError\n"
        holder.wait()
        assert "late.txt" not in s3.names(url)
        assert "locks/selection-00007" in s3.names(url), "the lease of another was deleted"
    assert "locks/selection-00007" not in s3.names(url)


def test_a_lost_answer_is_not_somebody_else(
    s3: Store, source: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store took the lease but its answer was lost: the process recognises its own lease."""
    from datamask.storage import leases

    storage = plan_run("s3://runs/answer", finished.settings(source)).storage
    create = ObjectStore.create
    monkeypatch.setattr(ObjectStore, "create", lambda *given: create(*given) and None)
    start = time.monotonic()
    with storage.lock("selection"):
        assert time.monotonic() - start < leases.DEFAULT_SECONDS / 2
        assert "locks/selection" in s3.names("s3://runs/answer")
    assert "locks/selection" not in s3.names("s3://runs/answer")


def test_another_machine_refuses_a_changed_source(
    s3: Store, machine: Machine, tmp_path: Path
) -> None:
    """The plan that counts is the store's, also where there is no copy of it yet."""
    corpus = finished.corpus(tmp_path / "corpus")
    url = "s3://runs/changed/mine"
    plan_run(url, finished.settings(corpus))
    noted = s3.read(url, "plan.parquet")
    machine("another")
    (corpus / "3.parquet").unlink()
    with pytest.raises(RunError, match=r"3\.parquet was removed"):
        plan_run(url, finished.settings(corpus))
    assert s3.read(url, "plan.parquet") == noted


def test_settings_are_not_changed_under_a_machine_that_works(
    s3: Store, source: Path, machine: Machine, tmp_path: Path
) -> None:
    """Another machine's work in the run is seen; when it has died, it is waited out."""
    url = "s3://runs/settings"
    plan_run(url, finished.settings(source))
    code = HOLD.replace('unit_of_work(run.storage, "selection", 7)', "working(run.storage)")
    other = process(code, url, cache=tmp_path / "other")
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    changed = finished.settings(source, selection={"ratio": 0.3})
    with pytest.raises(RunError, match=f"{url}: process {other.pid} on .* is working in it"):
        plan_run(url, changed)
    other.kill()
    other.wait()
    plan_run(url, changed)
    machine("third")
    assert open_run(url).settings.selection.ratio == 0.3


def test_a_put_that_breaks_leaves_nothing(
    s3: Store, source: Path, machine: Machine, original: Path
) -> None:
    """The connection drops half-way through a shard's file: it is nowhere."""
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


def test_what_was_damaged_in_the_store_is_found_and_made_again(
    s3: Store, source: Path, machine: Machine, original: Path
) -> None:
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
    told = CliRunner().invoke(cli, ["verify", url])
    assert isinstance(told.exception, CorruptFileError)
    assert f"{url}/{name}: SHA-256" in told.output
    assert f"{name}.corrupt" in s3.names(url)
    run_stage(open_run(url), "quality", Compute())
    assert s3.read(url, name) == (original / name).read_bytes()
    assert verify(open_run(url)).corrupt == ()


def test_commands_take_a_url(
    s3: Store, finished_run: str, machine: Machine, original: Path, tmp_path: Path
) -> None:
    """plan, status, report, compare, query, rerun-failed, sweep: on a machine that has nothing."""
    machine("commands")

    def ask(*arguments: str) -> str:
        result = CliRunner().invoke(cli, list(arguments), catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    assert "120 documents in 3 shards" in ask("status", finished_run)
    sql = "select count(*) as n from documents where selected"
    assert ask("query", finished_run, sql, "--format", "json") == '{"n": 30}\n'
    assert f"subset       {finished_run}/subset" in ask("rerun-failed", finished_run)
    page = tmp_path / "page.html"
    ask("compare", finished_run, str(original), "-o", str(page))
    assert page.stat().st_size > 1000
    assert f"report    {finished_run}/report.html" in ask("report", finished_run)
    assert s3.writes(finished_run)["report.html"] == 2


@pytest.mark.slow
def test_a_mirror_keeps_no_more_than_it_may(
    s3: Store, source: Path, machine: Machine, original: Path
) -> None:
    """What is evicted is fetched again when needed; the result is the same."""
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


def test_a_local_copy_of_another_version_is_not_used(
    s3: Store, source: Path, machine: Machine
) -> None:
    """Both what the store has in another version, and what was changed here, are fetched anew."""
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


def test_a_run_begun_on_disk_goes_on_in_the_store(
    s3: Store, source: Path, machine: Machine, original: Path
) -> None:
    """A folder that was copied there object by object, as by `aws s3 sync`, is a run."""
    url = "s3://runs/copied/mine"
    for path in original.rglob("*"):
        if path.is_file():
            s3.write(url, path.relative_to(original).as_posix(), path.read_bytes())
    assert {state for stage in run_status(open_run(url)) for state in stage.states} == {"done"}


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("s3://key:secret@runs/x", "environment"),
        ("hf://datasets/me/x", "object store"),
        ("https://example.org/x", "object store"),
        ("s3://runs/../x", "plain names"),
        ("s3://runs/a//b", "plain names"),
        ("s3://runs/a*", "plain names"),
        ("s3://", "plain names"),
        ("s3:/runs/x", "two slashes"),
        ("nosuch://runs/x", "not a place for a run"),
        ("s3://no-such-bucket/x", "no such bucket"),
    ],
)
def test_what_is_no_place_for_a_run(
    s3: Store, source: Path, machine: Machine, url: str, problem: str
) -> None:
    """One line, before any work; no password is repeated."""
    with pytest.raises(RunError, match=problem) as caught:
        plan_run(url, finished.settings(source))
    assert "secret" not in str(caught.value)


def test_a_run_inside_its_source_is_refused(s3: Store, source: Path, machine: Machine) -> None:
    """Its files would count as input the next time."""
    for path in source.iterdir():
        s3.write("s3://runs/input", path.name, path.read_bytes())
    inside = finished.settings(Path("s3://runs/input"))
    inside = inside.model_copy(update={"source": Source(path="s3://runs/input")})
    with pytest.raises(RunError, match=r"inside source\.path"):
        plan_run("s3://runs/input/run", inside)


def test_a_sweep_reads_what_its_machine_has_not(finished_run: str, machine: Machine) -> None:
    """Its trials are of files that are in the store only."""
    machine("sweeper")
    sweep = Sweep(quality_weights=(0.5,), seeds=(0,), shards=1, steps=3)
    assert run_sweep(open_run(finished_run), sweep, Compute()).is_file()


def test_no_secret_is_in_the_mirror_or_the_store(
    s3: Store, finished_run: str, machine: Machine
) -> None:
    """Credentials stay in the environment."""
    cache = machine("secrets")
    verify(open_run(finished_run))
    for path in cache.rglob("*"):
        assert path.is_dir() or b"s3-loopback-secret" not in path.read_bytes()
    for name in s3.names(finished_run):
        assert b"s3-loopback-secret" not in s3.read(finished_run, name), name


def test_a_store_without_conditions_works_without_leases(
    s3: Store, source: Path, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """The memory file system knows none: a warning, and the work is done."""
    run = plan_run("memory://bucket/run", finished.settings(source))
    run_stage(run, "scores", Compute())
    assert run.remaining("scores") == []
    assert len([r for r in caplog.records if "no conditional write" in r.message]) == 1


def test_a_file_outside_a_run_is_not_put(s3: Store, machine: Machine, tmp_path: Path) -> None:
    """Only what lies in a mirror concerns a store."""
    s3.proxy.requests.clear()
    with replace_file(tmp_path / "page.html") as temporary:
        temporary.write_text("page")
    assert not s3.proxy.requests
