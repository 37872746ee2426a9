"""A short version of the campaign (`make faults` is the long one): a kill, a full disk, a flip."""

import fcntl
import os
import random

import pytest

from tests.faults import campaign, other_machine
from tests.faults.harm import Case

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """An undisturbed run."""
    return campaign.make_case(tmp_path_factory.mktemp("faults"), 0, shards=3)


KINDS = ("killed",)
OTHERS = [
    pytest.param(kind, marks=pytest.mark.slow) for kind in campaign.FAULTS if kind not in KINDS
]


@pytest.mark.parametrize("kind", [*KINDS, *OTHERS])
def test_a_relaunch_ends_as_if_nothing_had_happened(kind, case, tmp_path, request):
    """The files of an undisturbed run, and nothing whole is made again."""
    generator = random.Random(request.node.name)
    try:
        outcome = campaign.inflict(kind, case, tmp_path / "run", generator)
    except PermissionError as error:
        pytest.skip(f"no file system of a chosen size here: {error}")
    assert outcome.survived, outcome


def test_the_other_machine_is_alone_with_its_locks(tmp_path):
    """Its locks exclude its own processes, not locks of flock, and end with their file."""
    handles = [os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(3)]
    fcntl.flock(handles[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
    other_machine.lock(handles[1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    with pytest.raises(BlockingIOError):
        other_machine.lock(handles[2], fcntl.LOCK_SH | fcntl.LOCK_NB)
    os.close(handles[1])
    other_machine.lock(handles[2], fcntl.LOCK_SH | fcntl.LOCK_NB)
