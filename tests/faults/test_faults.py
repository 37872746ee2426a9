"""A short version of the campaign (`make faults` is the long one): a kill, a full disk, a flip."""

import fcntl
import os
import random
import subprocess

import pytest

from tests.faults import campaign, other_machine, processes
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


def test_a_process_that_makes_no_progress_is_ended_with_its_children(monkeypatch):
    """Its message has the processor time, and no process of its group lives on."""
    monkeypatch.setattr(processes, "MOST_IDLE_SECONDS", 1)
    monkeypatch.setattr(processes, "POLL_SECONDS", 0.2)
    waits = "import signal; signal.pause()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', '{waits}'])"
    process = processes.start(python=("-c", code))
    with pytest.raises(RuntimeError, match="no end after"):
        processes.complete(process)
    command = ["ps", "-o", "stat=", "--no-headers", "-g", str(process.pid)]
    states = subprocess.run(command, capture_output=True, text=True).stdout.split()
    assert all(state.startswith("Z") for state in states), "dead, if not yet buried"


def test_kinds_and_cases_are_drawn_independently():
    """Every kind meets every case within few seeds, so no two of them go together."""
    drawn = set()
    for number in range(2000):
        generator = random.Random(f"0 {number}")
        drawn.add((campaign.draw_kind(generator), generator.randrange(4)))
    assert len(drawn) == 4 * (len(campaign.FAULTS) + 1)


def test_the_other_machine_is_alone_with_its_locks(tmp_path):
    """Its locks exclude its own processes, not those of flock, and end with their file."""
    handles = [os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(3)]
    fcntl.flock(handles[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
    other_machine.lock(handles[1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    with pytest.raises(BlockingIOError):
        other_machine.lock(handles[2], fcntl.LOCK_SH | fcntl.LOCK_NB)
    os.close(handles[1])
    other_machine.lock(handles[2], fcntl.LOCK_SH | fcntl.LOCK_NB)
