"""Rights are asked for before the work: with the unmodified client, against the loopback Hub."""

from __future__ import annotations

from pathlib import Path

import pytest

from datamask.config.outputs import Publication
from datamask.errors import HubUnavailableError, InputError, PublicationError, SettingsError
from datamask.planning.plan import plan_run
from datamask.publishing.access import check_access
from datamask.publishing.retries import Patience
from tests import finished
from tests.hub.server import Fault, Hub
from tests.publishing.conftest import TOKEN

TO = Publication(repository="ada/subset", license="odc-by")


def test_a_writer_may_publish_to_a_new_and_to_an_own_repository(hub: Hub) -> None:
    """Nothing is created by asking."""
    check_access(TO)
    assert not hub.repositories
    hub.add("ada/subset", {"a": b"a"})
    check_access(TO)
    check_access(Publication(repository="me/new", license="mit"))
    assert set(hub.calls) == {"whoami", "access"}


def test_a_dry_run_asks_nobody(hub: Hub) -> None:
    """Not even for a token."""
    check_access(Publication(license="mit", dry_run=True))
    assert hub.calls == []


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
def test_a_lack_of_rights_is_told_with_its_remedy(
    hub: Hub, name: str, change: dict, message: str
) -> None:
    """One line, without the token."""
    hub.add("ada/closed", {"a": b"a"})
    for key, value in change.items():
        setattr(hub, key, value)
    with pytest.raises(PublicationError, match=message) as caught:
        check_access(Publication(repository=name, license="mit"))
    assert TOKEN not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_hub_in_trouble_is_asked_again(hub: Hub) -> None:
    """One failure heals; lasting ones are transient, so that the launch may be tried again."""
    waits: list[float] = []
    hub.faults.append(Fault("whoami", status=503))
    check_access(TO, Patience(3, 0.01, waits.append))
    assert len(waits) == 1
    hub.faults.append(Fault("whoami", status=503, times=9))
    with pytest.raises(HubUnavailableError, match="checking the token"):
        check_access(TO, Patience(3, 0.01, waits.append))


def test_rights_are_missing_with_everything_else(hub: Hub, tmp_path: Path) -> None:
    """All problems at once, before anything is written; a stage that does not publish asks not."""
    hub.role = "read"
    source = finished.corpus(tmp_path / "source")
    to = {"publication": TO.model_dump()}
    with pytest.raises(PublicationError, match="a read token"):
        plan_run(tmp_path / "run", finished.settings(source, **to))
    wrong = {"selection": {"documents": 10_000}, **to}
    with pytest.raises((InputError, SettingsError), match=r"selection\.documents.*a read token"):
        plan_run(tmp_path / "run", finished.settings(source, **wrong))
    assert not (tmp_path / "run").exists()
    plan_run(tmp_path / "run", finished.settings(source, **to), publishing=False)
