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
from datamask.runs.files import replace_file
from datamask.runs.opening import run_storage
from datamask.runs.receipt import read_receipt
from datamask.runs.run import Run
from datamask.runs.stages import stages_of
from datamask.storage.local import LocalStorage
from datamask.storage.location import Root
from datamask.storage.protocol import checksum_name

logger = logging.getLogger(__name__)

OWN = ("report", "publication")
"""Stages whose files name the run, or what was published from it: every run makes its own."""


def check_sharing(origin: Root, root: Root) -> None:
    """Make sure that a run can share files with another.

    Raises:
        RunError: they are the same, or one of them is at a URL.
    """
    folders = [run_storage(place) for place in (origin, root)]
    for place in folders:
        if not isinstance(place, LocalStorage):
            raise RunError(
                f"{place.address}: files are shared between folders of this machine, not with an "
                "object store; leave out --from"
            )
    if folders[0].root.resolve() == folders[1].root.resolve():
        raise RunError(f"{root}: --from names the run itself; leave it out")


def share(origin: Run, run: Run) -> None:
    """Link, or else copy, every file of *run* that is not done and that *origin* has."""
    counts = {"linked": 0, "copied": 0}
    for stage in stages_of(run.settings):
        for unit in run.remaining(stage) if stage not in OWN else ():
            with locks.unit_of_work(origin.storage, *run.lock_of(stage, unit)):
                how = _share_unit(origin, run, stage, unit)
            if how:
                counts[how] += 1
    logger.info(
        "shared with %s: %d files linked, %d copied (a link needs the same disk)",
        origin.address,
        counts["linked"],
        counts["copied"],
    )


def _share_unit(origin: Run, run: Run, stage: str, unit: int) -> str:
    """Share one output with its checksum; how that was done, empty if there is no such file."""
    names = [run.name(stage, unit)]
    if stage == "selection":
        names.insert(0, f"curves/{unit:05d}.parquet")
    try:
        if read_receipt(origin.local_path(stage, unit)).fingerprint != run.fingerprint(stage, unit):
            return ""
        how = ""
        for name in names:
            for file in (checksum_name(name), name):
                how = _link(origin.root / file, run.root / file)
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
