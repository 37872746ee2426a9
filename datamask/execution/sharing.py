"""Files that a new run shares with another: what has the same fingerprint is linked, not made.

A file is its own receipt, so equal fingerprints mean equal bytes, and a hard link is enough: files
are replaced and never changed in place, so neither run sees what the other does later, and either
can be deleted. Only what is on the same disk can be linked; elsewhere it is copied.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

from datamask.errors import CorruptFileError, RunError
from datamask.runs import locks
from datamask.runs.files import checksum_path, replace_file
from datamask.runs.receipt import read_receipt
from datamask.runs.run import Run
from datamask.runs.stages import stages_of
from datamask.storage.location import Root, locate

logger = logging.getLogger(__name__)

OWN = ("report", "publication")
"""Stages whose files name the run, or what was published from it: every run makes its own."""


def check_sharing(origin: Root, root: Root) -> None:
    """Make sure that a run can share files with another.

    Raises:
        RunError: they are the same, or one of them is at a URL.
    """
    for place in (origin, root):
        if "://" in str(place) and not str(place).startswith("file://"):
            raise RunError(
                f"{place}: files are shared between folders of this machine, not with an object "
                "store; leave out --from"
            )
    if locate(root).resolve() == locate(origin).resolve():
        raise RunError(f"{root}: --from names the run itself; leave it out")


def share(origin: Run, run: Run) -> None:
    """Link, or else copy, every file of *run* that is not done and that *origin* has."""
    counts = {"linked": 0, "copied": 0}
    for stage in stages_of(run.settings):
        for unit in run.remaining(stage) if stage not in OWN else ():
            with locks.unit_of_work(origin.root, *run.lock_of(stage, unit)):
                how = _share_unit(origin.root, run, stage, unit)
            if how:
                counts[how] += 1
    logger.info(
        "shared with %s: %d files linked, %d copied (a link needs the same disk)",
        origin.root,
        counts["linked"],
        counts["copied"],
    )


def _share_unit(source: Path, run: Run, stage: str, unit: int) -> str:
    """Share one output with its checksum; how that was done, empty if there is no such file."""
    path = run.place(stage, unit)
    files = [path]
    if stage == "masks":
        files.insert(0, run.root / "curves" / path.name)
    places = {file: source / file.relative_to(run.root) for file in files}
    try:
        if read_receipt(places[path]).fingerprint != run.fingerprint(stage, unit):
            return ""
        how = ""
        for file, place in places.items():
            _link(checksum_path(source, place), checksum_path(run.root, file))
            how = _link(place, file)
    except (FileNotFoundError, CorruptFileError):
        return ""  # it is made again
    return how


def _link(source: Path, path: Path) -> str:
    """Put a file in place that another run has; how that was done."""
    try:
        with replace_file(path) as temporary:
            os.link(source, temporary)
        return "linked"
    except FileNotFoundError:
        raise
    except OSError:  # another disk, another owner, too many links, no links at all
        with replace_file(path) as temporary:
            shutil.copyfile(source, temporary)
        return "copied"
