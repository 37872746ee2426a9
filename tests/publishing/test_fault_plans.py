"""Seeded plans of faults: after each the dataset is whole, or the failure is clear and harmless.

A plan is drawn from everything that is known to go wrong between a client and the Hub, alone and
together, on a first publication and on a second, with few files and with several commits.
"""

import random

import pytest

from datamask.errors import HubUnavailableError, PublicationError
from tests.hub.runs import NAME, write_subset
from tests.hub.server import Fault, Hub
from tests.publishing.sending import commit_in_parts, folder, remote, send

pytestmark = pytest.mark.usefixtures("roughly")

CALLED = ("info", "tree", "preupload", "batch", "put", "verify", "validate", "commit", "refs")
CALLED += ("tag", "resolve", "branch", "paths")
ATTEMPTS = 4


def a_fault(chance: random.Random) -> Fault:
    """One of: answers that may heal, answers that do not, cuts, a slow body, a moved branch."""
    on, skip = chance.choice(CALLED), chance.choice((0, 0, 1))
    times = chance.choice((1, 1, 1, 2, 99))
    limit = {"RateLimit": '"api";r=0;t=55'}
    return chance.choice(
        (
            Fault(on, 429, times, headers=chance.choice((limit, {"Retry-After": "3"})), skip=skip),
            Fault(on, chance.choice((500, 502, 503, 504)), times, skip=skip),
            Fault(on, 403, message="Private repository storage limit reached", skip=skip),
            Fault(on, 0, times, skip=skip),
            Fault(on, 0, times, half=True, skip=skip),
            Fault(chance.choice(("commit", "tag", "put")), 0, times, after=True, skip=skip),
            Fault(chance.choice(("commit", "tag")), 504, 1, after=True),
            Fault(on, slow=0.05, skip=skip),
            Fault("commit", 412, times),
        )
    )


def files(hub: Hub, revision: str) -> dict[str, bytes] | None:
    """Return the files that a reader of a revision finds; None without such a revision."""
    repository = hub.repositories.get(NAME)
    if repository is None or repository.resolve(revision) is None:
        return None
    return remote(hub, revision)


SLOW = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 64)]


@pytest.mark.parametrize("seed", [*range(6), *SLOW])
def test_the_dataset_is_whole_or_the_failure_is_clear(make_run, hub, monkeypatch, seed):
    """Readers of main and of the tag see the old or the new, and a second try fixes it."""
    chance = random.Random(seed)
    run = make_run()

    if chance.random() < 0.3:
        commit_in_parts(monkeypatch)
        hub.page = 2
    if chance.random() < 0.5:
        send(run, attempts=ATTEMPTS)
        for unit in range(3):
            write_subset(run, unit, word="other")
    before = {revision: files(hub, revision) for revision in ("main", "v1")}
    hub.received.clear()
    hub.calls.clear()
    hub.faults = [a_fault(chance) for _ in range(chance.randint(1, 3))]
    put_is_spoilt = any(fault.on == "put" for fault in hub.faults)
    wanted = [fault.times for fault in hub.faults]

    failure = None
    try:
        send(run, attempts=ATTEMPTS)
    except (PublicationError, HubUnavailableError) as error:
        failure = str(error)
    assert [fault.times for fault in hub.faults] != wanted or "slow" in str(hub.faults), "no fault"
    ours = folder(run)
    if failure is None:
        assert files(hub, "main") == files(hub, "v1") == ours
    else:
        assert "\n" not in failure and hub.token not in failure
        assert files(hub, "main") in (before["main"], ours, {})
        # The Hub cannot move a tag, only delete and make it: it may be gone if making it keeps
        # failing after the right to make one was proven.
        may_be_lost = any(fault.on == "tag" and fault.times > ATTEMPTS for fault in hub.faults)
        assert files(hub, "v1") in [before["v1"], *([None] if may_be_lost else [])]

    hub.faults = []
    send(run, attempts=ATTEMPTS)
    assert files(hub, "main") == files(hub, "v1") == ours
    for commit in hub.repositories[NAME].history():
        assert files(hub, commit) in (ours, before["main"], {})
    assert put_is_spoilt or set(hub.received.values()) == {1}, "something was sent twice"
