"""The published files are the folder's, with the unmodified client and a loopback Hub."""

import json
from dataclasses import replace

import pytest
from huggingface_hub import DatasetCard

from datamask.cli import rebuilding
from datamask.config.compute import Compute
from datamask.errors import PublicationError, RunError
from datamask.execution.pipeline import run_stage
from datamask.publishing.access import check_access
from datamask.runs.receipt import read_receipt
from tests.hub.runs import NAME, write_subset
from tests.hub.server import Fault
from tests.publishing.sending import folder, remote, send

pytestmark = pytest.mark.usefixtures("hub")


def test_what_is_published_is_what_is_in_the_folder(make_run, hub, caplog):
    """Files, tag, privacy, card and record are as the run says, and nowhere is the token.

    Again, there is no commit and no upload. A changed file goes up alone, and the tag follows.
    """
    run = make_run()
    caplog.set_level("DEBUG")
    send(run)
    for path in run.root.rglob("*"):
        assert path.is_dir() or hub.token.encode() not in path.read_bytes(), path
    assert hub.token not in caplog.text
    repository = hub.repositories[NAME]
    assert repository.private
    assert remote(hub) == folder(run)
    assert repository.tags == {"v1": repository.branches["main"]}
    assert len(repository.history()) == 2, "one commit next to the Hub's first"
    assert set(repository.branches) == {"main"}
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

    before, calls = dict(repository.commits), len(hub.calls)
    send(run)
    assert repository.commits == before
    assert {"commit", "put", "tag", "batch"}.isdisjoint(hub.calls[calls:])
    assert json.loads((run.root / "published.json").read_text())["new_commit"] is False

    # The tag was deleted since: the stage does not ask the Hub, unless it is forced.
    del repository.tags["v1"]
    calls = len(hub.calls)
    run_stage(run, "publication", Compute())
    assert len(hub.calls) == calls and not repository.tags
    run_stage(run, "publication", Compute(), force=True)
    assert repository.tags == {"v1": repository.branches["main"]}
    assert repository.commits == before

    first = repository.tags["v1"]
    hub.received.clear()
    write_subset(run, 1, word="other")
    send(run)
    assert sum(hub.received.values()) == 1
    assert remote(hub) == folder(run)
    assert repository.tags["v1"] == repository.branches["main"] != first


def test_a_launch_ends_with_the_address_of_the_dataset(make_run, hub, capsys, monkeypatch):
    """The folder that was sent is on the machine that sent it, which may be another one."""
    run = make_run()
    send(run)
    monkeypatch.setattr(rebuilding, "_rebuilt", lambda *_, **given: (run, None))
    monkeypatch.setattr(rebuilding, "print_answer", lambda *_: None)
    rebuilding.rebuild_and_show(run.root, None, Compute())
    assert capsys.readouterr().out.split()[-1] == f"{hub.endpoint}/datasets/{NAME}"


def test_a_card_that_was_edited_on_the_hub_is_not_replaced_in_silence(make_run, hub, caplog):
    """A warning names the commit in which the edited text stays; other publications have none."""
    caplog.set_level("WARNING")
    run = make_run()
    send(run)
    send(run)
    assert hub.repositories[NAME].tags["v1"] not in caplog.text
    edited = remote(hub)["README.md"] + b"Our own words\n"
    commit = hub.add(NAME, {"README.md": edited})
    send(run)
    assert [record.args for record in caplog.records if commit in record.args] == [(NAME, commit)]
    assert hub.files(NAME, commit)["README.md"] == edited
    assert remote(hub) == folder(run)


def test_a_run_without_publication_is_refused(make_run):
    """The setting that is missing is named."""
    run = make_run()
    settings = run.settings.model_copy(update={"publication": None})
    with pytest.raises(RunError, match=r"set publication\.repository"):
        send(replace(run, settings=settings))


@pytest.mark.parametrize("path", ["data/extra/train-more.parquet", "sample/train-x.parquet"])
def test_a_file_of_others_that_would_be_loaded_is_refused(make_run, hub, path):
    """Before the run starts, and before anything is sent; files that nobody loads stay."""
    send(make_run())
    hub.add(NAME, {"data/extra/notes.txt": b"mine", "more.parquet": b"mine"})
    run = make_run()
    write_subset(run, 0, word="other")
    send(run)
    hub.add(NAME, {path: b"theirs"})
    before = hub.repositories[NAME].branches["main"]
    write_subset(run, 0, word="third")
    calls = len(hub.calls)
    with pytest.raises(PublicationError, match=path):
        send(run)
    assert hub.repositories[NAME].branches["main"] == before
    assert {"commit", "put", "tag"}.isdisjoint(hub.calls[calls:])
    with pytest.raises(PublicationError, match=path):
        check_access(run.settings.publication)


def test_a_stale_subset_is_not_published(make_run):
    """A missing file of the subset is named."""
    run = make_run()
    run.path("subset", 2).unlink()
    with pytest.raises(RunError, match=r"train-00002-of-00003\.parquet"):
        send(run)


def test_a_dry_run_shows_what_would_change(make_run, hub):
    """One folder is written, nothing is sent, and the change of every file is recorded."""
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
    stale = [f"{name}/train-00009-of-00010.parquet" for name in ("data/default", "tokens")]
    hub.add(NAME, dict.fromkeys(stale, b"old"))
    write_subset(dry, 1, word="other")
    before = dict(hub.repositories[NAME].branches)
    send(dry)
    assert json.loads((dry.root / "published.json").read_text())["changes"] == {
        "add": [],
        "replace": ["README.md", "data/default/train-00001-of-00003.parquet"],
        "delete": stale,
    }
    assert hub.repositories[NAME].branches == before


def test_a_dry_run_needs_no_hub(make_run, hub, monkeypatch, caplog):
    """Without a token nothing is called; an unavailable Hub is logged and does not fail."""
    caplog.set_level("INFO")
    run = make_run(dry_run=True)
    hub.faults = [Fault("info", 503, times=99)]
    send(run)
    assert "not compared with the Hub: ada/subset: comparing" in caplog.text
    calls = len(hub.calls)
    monkeypatch.delenv("HF_TOKEN")
    send(run)
    assert len(hub.calls) == calls
    assert "not compared with the Hub: HF_TOKEN is not set" in caplog.text
