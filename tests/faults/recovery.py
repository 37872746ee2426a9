"""Act as users do after a fault. Each function raises a RuntimeError if a promise is broken."""

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

from datamask.runs.stages import owner_of
from tests.faults.comparison import contents, digest_of
from tests.faults.harm import Case, extend, rebuild
from tests.faults.processes import complete, start

MOST_LAUNCHES = 4


def relaunch(case: Case, root: Path) -> None:
    """Run the same command again.

    Raises:
        RuntimeError: it failed, with what it said.
    """
    _succeed(rebuild(case, root))


def verify_and_relaunch(case: Case, root: Path) -> None:
    """Verify first, like a user who fears for the files.

    Raises:
        RuntimeError: the launch failed, or verify ended in a traceback.
    """
    _, said = complete(start("verify", str(root)))
    if "Traceback" in said:
        raise RuntimeError(said)
    relaunch(case, root)


def extend_again(case: Case, root: Path) -> None:
    """Run the same command again, after the user extended the run.

    Raises:
        RuntimeError: it failed, with what it said.
    """
    _succeed(extend(root))


def relaunch_often(case: Case, root: Path) -> None:
    """Launch until it ends well, as messages about damaged files say, and verify only then.

    Raises:
        RuntimeError: it never ends well, or a file that differs from the undisturbed run's has the
            right checksum: it was made from something else, which no checksum shows.
    """
    for _ in range(MOST_LAUNCHES):
        status, said = complete(rebuild(case, root))
        if "Traceback" in said or status not in (0, 2, 75):
            raise RuntimeError(said[-2000:])
        if status == 0:
            break
    else:
        raise RuntimeError(f"status {status} after {MOST_LAUNCHES} launches: {said[-2000:]}")
    whole = contents(case.reference)
    wrong = [name for name in whole if contents_of(root, name) != whole[name]]
    certified = [name for name in wrong if is_noted(root, name)]
    if certified:
        raise RuntimeError(f"certified though they are wrong: {', '.join(certified)}")
    verify_and_relaunch(case, root)


def is_noted(root: Path, name: str) -> bool:
    """Return True if an output has its recorded checksum; a link has its file's."""
    path = (root / name).resolve()
    inner = str(path.relative_to(root.resolve()))
    record = root / "records" / f"{owner_of(inner) or inner}.json"
    if not path.is_file() or not record.exists():
        return False
    noted = json.loads(record.read_text()).get("sha256", {}).get(inner)
    return bool(noted == hashlib.sha256(path.read_bytes()).hexdigest())


def remove_directory_and_relaunch(case: Case, root: Path) -> None:
    """Relaunch; remove the directory if the message asks for that.

    A launch ends well where no work that is due reads the output; `verify` finds the directory. A
    file that was written beside an output is missed first, and made again by the launch after that.

    Raises:
        RuntimeError: the message does not name the directory, or launches without it fail.
    """
    status, said = complete(rebuild(case, root))
    if status == 0:
        verify_and_relaunch(case, root)
        return
    expected = [path.relative_to(case.reference) for path in case.reference.rglob("*")]
    wrong = [n for n in expected if (case.reference / n).is_file() and (root / n).is_dir()]
    named = [name for name in wrong if str(name) in said]
    if "Traceback" in said or status != 2 or not named:
        raise RuntimeError(f"status {status}: {said[-2000:]}")
    for name in named:
        shutil.rmtree(root / name)
    relaunch_often(case, root)


def relaunch_on_two_machines(case: Case, root: Path) -> None:
    """Two machines without common locks launch at once, and then one of them again.

    Raises:
        RuntimeError: a launch ended in a traceback, or the last one failed.
    """
    other = (str(Path(__file__).with_name("other_machine.py")),)
    both = [rebuild(case, root), rebuild(case, root, python=other)]
    for status, said in map(complete, both):
        if "Traceback" in said or status not in (0, 2, 75):
            raise RuntimeError(f"status {status}: {said[-2000:]}")
    relaunch(case, root)


def _succeed(process: subprocess.Popen[str]) -> None:
    status, said = complete(process)
    if status:
        raise RuntimeError(f"status {status}: {said[-2000:]}")


def contents_of(root: Path, name: str) -> str:
    """The digest of one output; empty if it is damaged beyond reading."""
    try:
        return digest_of(root / name)
    except Exception:  # every reader has its own errors
        return ""
