"""Missing rights and repositories of others are refused, with the unmodified client."""

import json

import pytest

from datamask.config.outputs import Publication
from datamask.errors import HubUnavailableError, InputError, PublicationError, SettingsError
from datamask.planning.plan import plan_run
from datamask.publishing import retries
from datamask.publishing.access import check_access
from datamask.runs.run import Run
from tests import finished
from tests.hub.runs import NAME
from tests.hub.server import Fault
from tests.publishing.conftest import TOKEN
from tests.publishing.sending import folder, remote, send

TO = Publication(repository="ada/subset", license="odc-by")


def test_a_writer_may_publish_to_a_new_and_to_an_own_repository(hub):
    """The check creates nothing; for a dry run nothing is asked, not even for a token."""
    check_access(Publication(license="mit", dry_run=True))
    assert hub.calls == []
    check_access(TO)
    assert not hub.repositories
    hub.add("ada/subset", {".gitattributes": b""})
    check_access(TO)
    check_access(Publication(repository="me/new", license="mit"))
    assert set(hub.calls) == {"whoami", "access", "info", "tree"}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("ada/subset", {"role": "read"}, r"HF_TOKEN: a read token of me; create one with write"),
        ("ada/subset", {"token": "hf_other"}, r"HF_TOKEN: checking the token: .*HF_TOKEN"),
        ("bob/subset", {}, r"bob/subset: missing or not visible.*may write as ada, me\)"),
        (
            "eve/subset",
            {"orgs": {"eve": "read"}},
            r"eve/subset: missing or not visible.*may write as me\)",
        ),
        ("ada/closed", {"closed": {"ada/closed"}}, r"ada/closed: checking write access: .*write"),
    ],
)
def test_missing_rights_are_reported_with_their_remedy(hub, name, change, message):
    """One line, without the token."""
    hub.add("ada/closed", {"a": b"a"})
    for key, value in change.items():
        setattr(hub, key, value)
    with pytest.raises(PublicationError, match=message) as caught:
        check_access(Publication(repository=name, license="mit"))
    assert TOKEN not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_hub_in_trouble_is_asked_again(hub, monkeypatch):
    """One failure heals; lasting ones are transient, so that the launch may be tried again."""
    waits: list[float] = []
    monkeypatch.setattr(retries, "pause", waits.append)
    hub.faults.append(Fault("whoami", status=503))
    check_access(TO)
    assert len(waits) == 1
    hub.faults.append(Fault("whoami", status=503, times=9))
    with pytest.raises(HubUnavailableError, match="checking the token"):
        check_access(TO)


def test_rights_are_missing_with_everything_else(hub, source, tmp_path):
    """All problems at once, before anything is written; a stage that does not publish asks not."""
    hub.role = "read"
    to = {"publication": TO.model_dump()}
    with pytest.raises(PublicationError, match="a read token"):
        plan_run(tmp_path / "run", finished.settings(source, **to))
    wrong = {"selection": {"documents": 10_000}, **to}
    with pytest.raises((InputError, SettingsError), match=r"selection\.documents.*a read token"):
        plan_run(tmp_path / "run", finished.settings(source, **wrong))
    assert not (tmp_path / "run").exists()
    plan_run(tmp_path / "run", finished.settings(source, **to), publishing=False)


def test_a_published_run_is_relaunched_without_the_hub(hub, source, tmp_path, monkeypatch):
    """Unless settings change, or it is not published yet."""
    chosen = finished.settings(source, publication=TO.model_dump())
    root = plan_run(tmp_path / "run", chosen).root
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(PublicationError):
        plan_run(root, None)
    monkeypatch.setattr(Run, "state", lambda *given: "done")
    hub.calls.clear()
    plan_run(root, None)
    plan_run(root, chosen)
    assert not hub.calls
    with pytest.raises(PublicationError):
        plan_run(root, chosen.model_copy(update={"seed": 9}))


@pytest.mark.parametrize(("token", "calls"), [("", []), ("hf_wrong", ["info"])])
def test_an_absent_and_a_wrong_token_are_refused_at_once(make_run, hub, monkeypatch, token, calls):
    """Before any work, or by the first call; there is no second."""
    monkeypatch.setenv("HF_TOKEN", token)
    run = make_run()
    with pytest.raises(PublicationError, match="HF_TOKEN") as caught:
        send(run)
    assert "hf_wrong" not in str(caught.value)
    assert hub.calls == calls
    assert (run.root / "publication").exists() == bool(token)


@pytest.mark.parametrize(
    "files",
    [{"model.bin": b"x"}, {"README.md": b"# Mine\n"}, {"README.md": b"---\ntags: [a]\n---\n"}],
)
def test_a_repository_not_published_by_datamask_is_refused(make_run, hub, files):
    """Files without our card stop the publication before anything is sent."""
    hub.add(NAME, files)
    for publish in (lambda: check_access(TO), lambda: send(make_run())):
        with pytest.raises(PublicationError, match="not published by datamask"):
            publish()
    assert remote(hub) == files
    assert hub.repositories[NAME].tags == {}
    assert not hub.received


def test_a_repository_filled_during_the_upload_is_refused(make_run, hub):
    """Files that appear during the upload are not overwritten."""
    hub.before["commit"] = lambda: hub.add(NAME, {"README.md": b"# Mine\n"})
    with pytest.raises(PublicationError, match="not published by datamask"):
        send(make_run())
    assert remote(hub) == {"README.md": b"# Mine\n"}


def test_a_public_repository_is_refused_for_a_private_run(make_run, hub):
    """Private data does not go to a public repository."""
    hub.add(NAME, {".gitattributes": b""}, private=False)
    for publish in (lambda: check_access(TO), lambda: send(make_run())):
        with pytest.raises(PublicationError, match="is public"):
            publish()
    send(make_run(private=False))


@pytest.mark.slow
@pytest.mark.parametrize("token", ["", "hf_wrong"])
def test_a_dry_run_reports_that_publishing_would_be_refused(make_run, hub, monkeypatch, token):
    """The dry run reports the reason, and writes the folder."""
    hub.add(NAME, {"model.bin": b"x"})
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    run = make_run(dry_run=True)
    send(run)
    refused = json.loads((run.root / "published.json").read_text())["refused"]
    assert ("HF_TOKEN" if token else "not published by datamask") in refused
    assert "README.md" in folder(run)
