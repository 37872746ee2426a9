"""Machines that work on one run in an object store: leases, kills, and whose work is seen."""

import re
import signal
import time
from types import SimpleNamespace

import pytest

from datamask.config.compute import Compute
from datamask.errors import RunError
from datamask.execution.attempts import run_unit
from datamask.execution.pipeline import run_stage
from datamask.planning.plan import plan_run
from datamask.runs.opening import open_run
from datamask.storage import leases
from datamask.storage.object_store import ObjectStore
from tests import finished
from tests.killed import kill
from tests.storage.conftest import LEASE_SECONDS, process, wait_for

pytestmark = pytest.mark.usefixtures("undrawn")

WORK = """
import os, sys, time
from datamask.config.compute import Compute
from datamask.execution import attempts, pipeline
from datamask.runs.opening import open_run
from datamask.runs.records import read_record
url, stop, meeting = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
real = attempts._work
def work(run, stage, unit, compute, force):
    print("begins", unit, flush=True)
    time.sleep(60 if unit == stop else 0.1)
    real(run, stage, unit, compute, force)
attempts._work = work
run = open_run(url)
for folder in meeting:
    open(os.path.join(folder, str(os.getpid())), "w").close()
    while len(os.listdir(folder)) < 2:
        time.sleep(0.01)
pipeline.run_stage(run, "scores", Compute())
print("ends", flush=True)
"""
"""Does stage `scores` of a run; at one shard it stops for a minute.

With a folder, two processes wait there for each other before they look for work. They hold no lock
then: both may choose the same shard first.
"""


def said(output: str) -> list[int]:
    """The shards that a process began."""
    return [int(line.split()[1]) for line in output.splitlines() if line.startswith("begins")]


def never_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a process would wait for a lease."""

    def sleep(seconds: float) -> None:
        pytest.fail("it waits for a lease")

    clock = SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
    monkeypatch.setattr(leases, "time", clock)


@pytest.mark.slow
def test_a_killed_machine_is_replaced_by_another(s3, source, machine, original, tmp_path):
    """SIGKILL in a shard: another machine goes on when its lease has expired, redoing nothing."""
    url = "s3://runs/killed/mine"
    plan_run(url, finished.settings(source))
    victim = process(WORK, url, "1", cache=tmp_path / "victim")
    wait_for("begins 1", victim)
    kill(victim)
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
    assert '"attempts": 2' in s3.read(url, "records/scores/00001.parquet.json").decode()


IN_PARTS = """
import os, signal, sys
import s3fs.core
from datamask.storage import object_store
object_store.SMALL_BYTES = 0
s3fs.core.calculate_chunksize = lambda size, chunksize=None: 256
call_s3, at = s3fs.core.S3FileSystem._call_s3, sys.argv.pop()
async def call(self, method, *given, **named):
    if method == at and "scores/00001" in named["Key"] and named.get("PartNumber", 2) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return await call_s3(self, method, *given, **named)
s3fs.core.S3FileSystem._call_s3 = call
"""
"""Files are put in parts of 256 bytes, as those above 100 MiB are in parts of 50 MiB."""


@pytest.mark.slow
@pytest.mark.parametrize("at", ["upload_part", "complete_multipart_upload"])
def test_a_process_killed_between_parts_of_a_file(s3, source, machine, original, tmp_path, at):
    """Some parts or all: the file is not there until it is put again, with its own bytes."""
    url, name = f"s3://runs/{at}/mine", "scores/00001.parquet"
    plan_run(url, finished.settings(source))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1)
        victim = process(IN_PARTS + WORK, url, "-1", at, cache=tmp_path / "victim")
        assert victim.wait(120) == -signal.SIGKILL
        begun = s3.client.list_multipart_uploads(Bucket="runs").get("Uploads", [])
        assert f"{at}/mine/{name}" in [upload["Key"] for upload in begun]
        assert name not in s3.names(url)
        machine("other")
        run_stage(open_run(url), "scores", Compute())
    for shard in range(3):
        name = f"scores/{shard:05d}.parquet"
        assert s3.read(url, name) == (original / name).read_bytes()
        assert s3.writes(url)[name] == 1


@pytest.mark.slow
def test_a_machine_that_comes_back_does_not_wait_for_itself(
    s3, source, machine, tmp_path, monkeypatch
):
    """The lease of a dead process of the same mirror is taken over at once."""
    url = "s3://runs/same"
    plan_run(url, finished.settings(source))
    cache = tmp_path / "shared"
    victim = process(WORK, url, "0", cache=cache)
    wait_for("begins 0", victim)
    kill(victim)
    machine("shared")
    never_wait(monkeypatch)
    run_unit(open_run(url), "scores", 0, Compute())


@pytest.mark.slow
def test_two_machines_do_every_shard_once(s3, source, machine, tmp_path):
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


HOLD = """
import sys
from datamask.runs import locks
from datamask.runs.files import replace_file
from datamask.runs.opening import open_run
from datamask.runs.records import read_record
run = open_run(sys.argv[1])
with run.storage.lock("selection-00007"):
    print("held", flush=True)
    sys.stdin.readline()
    try:
        with replace_file(run.root / "late.txt", run.storage) as temporary:
            temporary.write_text("too late")
    except Exception as error:
        print(type(error).__name__, flush=True)
"""


def test_a_process_that_lost_its_lease_writes_nothing(s3, source, machine, tmp_path):
    """A held lease is renewed and excludes others; a stopped process loses it and notices that."""
    url = "s3://runs/stopped"
    run = plan_run(url, finished.settings(source))
    holder = process(HOLD, url, cache=tmp_path / "holder")
    assert holder.stdin is not None
    wait_for("held", holder)
    while b'"beat": 1,' in s3.read(url, "locks/selection-00007"):
        time.sleep(0.05)  # until it is renewed
    holder.send_signal(signal.SIGSTOP)
    start = time.monotonic()
    with run.storage.lock("selection-00007"):
        assert time.monotonic() - start > LEASE_SECONDS / 2
        holder.send_signal(signal.SIGCONT)
        holder.stdin.write("go\n")
        holder.stdin.flush()
        wait_for("StorageError", holder)
        holder.wait()
        assert "late.txt" not in s3.names(url)
        assert "locks/selection-00007" in s3.names(url), "the lease of another was deleted"
    assert "locks/selection-00007" not in s3.names(url)


def test_a_lease_whose_answer_was_lost_is_recognised(s3, source, machine, monkeypatch):
    """The store took the lease but its answer was lost: the process recognises its own lease."""
    storage = plan_run("s3://runs/answer", finished.settings(source)).storage
    replace = ObjectStore.replace
    monkeypatch.setattr(ObjectStore, "replace", lambda *given: replace(*given) and None)
    never_wait(monkeypatch)
    with storage.lock("selection"):
        assert "locks/selection" in s3.names("s3://runs/answer")
    assert "locks/selection" not in s3.names("s3://runs/answer")


@pytest.mark.slow
def test_settings_are_not_changed_under_a_machine_that_works(s3, source, machine, tmp_path):
    """Work on another machine forbids a change; after its death, its lease expires."""
    url = "s3://runs/settings"
    plan_run(url, finished.settings(source))
    code = HOLD.replace('run.storage.lock("selection-00007")', "locks.working(run.storage)")
    other = process(code, url, cache=tmp_path / "other")
    wait_for("held", other)
    changed = finished.settings(source, selection={"ratio": 0.3})
    with pytest.raises(RunError, match=f"{url}: process {other.pid} on .* is working in it"):
        plan_run(url, changed)
    kill(other)
    plan_run(url, changed)
    machine("third")
    assert open_run(url).settings.selection.ratio == 0.3


def test_a_store_without_conditions_works_without_leases(s3, source, machine, caplog):
    """The memory file system has no conditional write: a warning, and the work is done."""
    run = plan_run("memory://bucket/run", finished.settings(source))
    run_stage(run, "scores", Compute())
    assert run.remaining("scores") == []
    assert len([r for r in caplog.records if "no conditional write" in r.message]) == 1
