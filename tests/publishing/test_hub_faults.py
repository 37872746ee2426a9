"""Faults of the Hub, the connection and other clients: they heal, or the tag stays where it was."""

import contextlib
import sys
import threading
from itertools import product
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import HfApi, close_session, hf_api

from datamask.config.compute import Compute
from datamask.errors import DatamaskError, HubUnavailableError, PublicationError
from datamask.execution.pipeline import run_stage
from datamask.publishing import folder as publishing_folder
from datamask.publishing import retries, upload
from datamask.publishing.upload import Upload
from tests.conftest import mostly_nightly, nightly
from tests.hub.runs import NAME, write_subset
from tests.hub.server import Fault
from tests.publishing.conftest import TOKEN
from tests.publishing.sending import folder, remote, send

pytestmark = pytest.mark.usefixtures("roughly")

CUT = 0
HEALING = [
    *(Fault(on, status) for on in ("create", "info", "tree", "refs") for status in (500, CUT)),
    *(Fault("preupload", status) for status in (503, 429, CUT)),
    *(Fault("batch", status) for status in (500, CUT)),
    *(Fault("put", status, skip=skip) for status in (500, CUT) for skip in (0, 2)),
    Fault("put", CUT, after=True),
    Fault("verify", 503),
    Fault("validate", 502),
    *(Fault("branch", status, after=after) for status in (500, CUT) for after in (0, 1)),
    *(Fault("paths", status, skip=skip) for status in (500, CUT) for skip in (0, 1)),
    # The first is of the staging branch, the second of main.
    *(
        Fault("commit", status, after=after, skip=skip)
        for status in (500, 504, CUT)
        for after in (0, 1)
        for skip in (0, 1)
    ),
    *(Fault("commit", 412, skip=skip) for skip in (0, 1)),
    Fault("commit", 429, headers={"Retry-After": "7"}),
    Fault("commit", 429, headers={"RateLimit": '"api";r=0;t=55'}, times=2),
    Fault("commit", 412, times=2),
    *(Fault("tag", status, after=after) for status in (500, CUT) for after in (0, 1)),
]


def first_of_each(faults: list[Fault]) -> list[Fault]:
    """One fault of each call, before and after its effect, and of each header."""
    kinds = {(fault.on, bool(fault.after), *fault.headers): fault for fault in faults[::-1]}
    return list(kinds.values())


@pytest.mark.parametrize("fault", mostly_nightly(first_of_each(HEALING), HEALING), ids=str)
def test_transient_faults_heal(make_run, hub, fault):
    """After the fault everything is there, in one commit, and nothing was sent twice."""
    run = make_run()
    hub.faults = [fault]
    send(run)
    assert fault.times == 0, "the fault was not met"
    repository = hub.repositories[NAME]
    assert remote(hub) == folder(run)
    assert repository.tags == {"v1": repository.branches["main"]}
    assert len(repository.history()) == 2
    assert fault.on == "put" or set(hub.received.values()) == {1}


@pytest.mark.parametrize(
    ("on", "is_new"),
    mostly_nightly(
        [("info", False), ("put", True), ("commit", False)],
        product(("info", "preupload", "put", "commit", "tag"), (False, True)),
    ),
)
def test_a_hub_that_does_not_answer_times_out(make_run, hub, monkeypatch, on, is_new):
    """The client has no time-out of its own; with ours, a missing answer is a transient fault.

    Without ours, this test would not end in its time. After a failed connection the client makes a
    new session, in the middle of an upload.
    """
    monkeypatch.setattr(retries, "SILENCE_SECONDS", 1.0)
    upload_folder = HfApi.upload_folder

    def in_new_session(self: HfApi, **options: Any) -> Any:
        close_session()
        return upload_folder(self, **options)

    if is_new:
        monkeypatch.setattr(HfApi, "upload_folder", in_new_session)
    run = make_run()
    hub.faults = [Fault(on, hang=3600)]
    send(run)
    assert hub.faults[0].times == 0
    assert remote(hub, "v1") == folder(run)


def test_a_session_that_another_thread_closes_is_asked_for_again(make_run, hub, monkeypatch):
    """After a failed connection the client closes the one session, and hands out None meanwhile."""
    run, sessions, get_session = make_run(), iter([None]), hf_api.get_session
    monkeypatch.setattr(hf_api, "get_session", lambda: next(sessions, get_session()))
    assert len(send(run)) == 1
    assert remote(hub, "v1") == folder(run)


def test_a_stuck_upload_says_that_it_is_tried_again(make_run, hub, caplog):
    """By the rule for stuck units, long before the connection times out."""
    run = make_run()
    hub.faults = [Fault("preupload", hang=3600)]
    with caplog.at_level("WARNING"):
        run_stage(run, "publication", Compute(stall_minutes=0.05))
    assert "publication: no progress for 0.05 minutes" in caplog.text
    assert "trying again" in caplog.text
    assert remote(hub, "v1") == folder(run)
    # The thread that was given up would close the connections of later tests.
    [stuck] = (thread for thread in threading.enumerate() if thread.name == "publication")
    hub.released.set()
    stuck.join(60)
    assert not stuck.is_alive()


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        (Fault("commit", 401), PublicationError, "HF_TOKEN"),
        (Fault("commit", 403, message=f"{TOKEN} may read"), PublicationError, r"\*\*\* may read"),
        (Fault("put", 503, times=99), HubUnavailableError, "after 3 attempts"),
        *nightly(
            (Fault("commit", 403, message="Private storage limit"), PublicationError, "plan"),
            (Fault("commit", 500, times=99, skip=1), HubUnavailableError, "after 3 attempts"),
            (Fault("tag", 403), PublicationError, "write access"),
            (Fault("info", 403), PublicationError, "write access"),
            (Fault("batch", 403, message="storage limit"), PublicationError, "free storage"),
            (Fault("commit", 403), PublicationError, "write access"),
            (Fault("commit", 403, skip=1), PublicationError, "write access"),
            (Fault("preupload", 404), PublicationError, "check publication.repository"),
            (Fault("commit", 500, times=99), HubUnavailableError, "after 3 attempts"),
            (Fault("commit", 412, times=99), HubUnavailableError, "after 3 attempts"),
            (Fault("tree", CUT, times=99), HubUnavailableError, "after 3 attempts"),
        ),
    ],
    ids=str,
)
def test_lasting_faults_fail_cleanly(make_run, hub, fault, error, message):
    """One clear line, the tag where it was, no token; and the next publication succeeds."""
    run = make_run()
    send(run)
    repository = hub.repositories[NAME]
    tag = repository.tags["v1"]
    write_subset(run, 0, word="other")
    hub.faults = [fault]
    if fault.on == "tag":
        del repository.tags["v1"]
    with pytest.raises(error, match=message) as caught:
        send(run, attempts=3)
    assert "\n" not in str(caught.value)
    assert hub.token not in f"{caught.value!r}"
    assert repository.tags.get("v1") == (None if fault.on == "tag" else tag)
    hub.faults = []
    send(run)
    assert remote(hub, "v1") == folder(run)


@pytest.mark.parametrize("status", [401, 403, 409])
def test_a_tag_that_cannot_be_made_anew_is_not_deleted(make_run, hub, status):
    """Moving is deleting and making anew: the right to make one is proved before."""
    run = make_run()
    send(run)
    first = hub.repositories[NAME].tags["v1"]
    write_subset(run, 0, word="other")
    hub.faults = [Fault("tag", status, times=99)]
    with pytest.raises(PublicationError) as caught:
        send(run)
    assert "untag" not in hub.calls
    assert hub.repositories[NAME].tags == {"v1": first} and first not in str(caught.value)
    hub.faults = []
    send(run)
    assert hub.repositories[NAME].tags == {"v1": hub.repositories[NAME].branches["main"]}


@pytest.mark.parametrize("status", [401, 403, 409, 500])
def test_a_tag_that_is_lost_is_named(make_run, hub, status, caplog):
    """The right is lost between deleting and making: the message has the commit readers need."""
    run = make_run()
    send(run)
    repository = hub.repositories[NAME]
    first = repository.tags["v1"]
    repository.tags["v2"] = first
    write_subset(run, 0, word="other")
    hub.faults = [Fault("tag", status, times=99, skip=1)]
    with pytest.raises(DatamaskError) as caught:
        send(run)
    assert {*repository.tags} == {"v2", "datamask-moving-v1"}
    assert first in str(caught.value) and f"tag create {NAME} v1" in str(caught.value)
    assert "publication.tag=v3" in caplog.text, "v2 is taken"
    hub.faults = []
    send(run)
    assert repository.tags == {"v1": repository.branches["main"], "v2": first}


def test_a_tag_whose_move_was_killed_is_set_by_the_next_launch(make_run, hub, monkeypatch):
    """A process that is killed after deleting restores nothing."""
    run = make_run()
    send(run)
    write_subset(run, 0, word="other")
    delete = HfApi.delete_tag
    with monkeypatch.context() as patch:

        def die(api: HfApi, **given: Any) -> None:
            delete(api, **given)
            patch.setattr(HfApi, "create_tag", lambda *_, **given: sys.exit("killed"))

        patch.setattr(HfApi, "delete_tag", die)
        with pytest.raises(SystemExit):
            send(run)
    repository = hub.repositories[NAME]
    assert {*repository.tags} == {"datamask-moving-v1"}
    send(run)
    assert repository.tags == {"v1": repository.branches["main"]}


def test_the_wait_follows_what_the_hub_asks_for(make_run, hub):
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


@pytest.mark.parametrize(
    ("of", "call"),
    [
        (Upload, "move_main"),
        *nightly(
            (HfApi, "upload_folder"),
            (Upload, "tag"),
            (Upload, "stage"),
            (upload, "read_back"),
            (HfApi, "create_commit"),
        ),
    ],
)
def test_two_publishers_do_not_mix_their_files(make_run, hub, monkeypatch, of, call):
    """The second publishes while the first is just before a call: a version is of one of them."""
    run, other = make_run(), make_run(num_shards=2)
    original = getattr(of, call)

    def second_comes_first(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(of, call, original)
        send(other)
        return original(*given, **named)

    monkeypatch.setattr(of, call, second_comes_first)
    with contextlib.suppress(PublicationError, HubUnavailableError):
        send(run)
    versions = [folder(run), folder(other)]
    repository = hub.repositories[NAME]
    assert remote(hub, "v1") in versions
    assert all(remote(hub, commit) in [*versions, {}] for commit in repository.history())
    send(run)
    assert remote(hub, "v1") == remote(hub) == versions[0]


def test_a_commit_of_another_client_is_kept(make_run, hub):
    """The Hub refuses a commit on an old parent; the next one is made on top of the other."""
    run = make_run()
    send(run)
    write_subset(run, 0, word="other")
    hub.calls.clear()
    add = {"commit": lambda: hub.add(NAME, {"picture.png": b"png"})}
    hub.before["commit"] = lambda: hub.before.update(add)  # the second commit is the one on main
    send(run)
    assert hub.calls.count("commit") == 3, "of staging, refused on main, on main"
    assert remote(hub, "v1") == folder(run) | {"picture.png": b"png"}


def test_a_file_that_arrives_different_is_found_before_the_tag(make_run, hub):
    """Verification compares hashes, and names the file."""
    hub.corrupt = {"data/default/train-00001-of-00003.parquet"}
    with pytest.raises(PublicationError, match=r"train-00001-of-00003\.parquet differs"):
        send(make_run())
    assert hub.repositories[NAME].tags == {}
    assert remote(hub) == {}


def other_values(table: pa.Table, size: int) -> bytes:
    """A Parquet file of the size in the listing, in which every text is another."""
    sink = pa.BufferOutputStream()
    table = table.set_column(0, "text", pa.array(["x"] * len(table)))
    pq.write_table(table, sink, compression="zstd")
    data = sink.getvalue().to_pybytes()
    footer = int.from_bytes(data[-8:-4], "little") + 8
    assert len(data) <= size
    return data[:-footer] + bytes(size - len(data)) + data[-footer:]


def test_what_the_hub_serves_is_read_before_the_tag(make_run, hub, monkeypatch):
    """The listing is correct, but the content that a reader gets is not."""
    run, real = make_run(), publishing_folder.configurations
    # Without the sample, which is smaller: one of the smallest files is read.
    monkeypatch.setattr(publishing_folder, "configurations", lambda *given: real(*given)[:-1])
    path = min(run.root.glob("subset/*.parquet"), key=lambda path: (path.stat().st_size, path))
    name = f"data/default/{path.name}"
    hub.altered[name] = other_values(pq.read_table(path), path.stat().st_size)
    with pytest.raises(PublicationError, match=name):
        send(run)
    assert hub.repositories[NAME].tags == {}
    assert remote(hub) == {}
    hub.altered.clear()
    send(run)
    assert remote(hub, "v1") == folder(run)
