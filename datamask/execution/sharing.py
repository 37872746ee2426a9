"""Share files between a new run and another: equal fingerprints are linked, not made again.

Equal fingerprints mean equal bytes, and files are replaced, never changed in place. So with hard
links neither run is affected by later changes of the other, and either can be deleted. Files on
another disk are copied. Embeddings of other surviving documents are shared too: the run takes from
them the vectors that it needs (`embedding.reuse`).
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import Counter

from datamask.embedding.reuse import has_same_vectors
from datamask.errors import CorruptFileError, RunError
from datamask.runs.files import link_file
from datamask.runs.opening import run_storage
from datamask.runs.receipt import read_receipt
from datamask.runs.records import write_record
from datamask.runs.run import Run
from datamask.runs.stages import stages_of
from datamask.storage.contents import Record
from datamask.storage.location import Root
from datamask.storage.remote import RemoteStorage

logger = logging.getLogger(__name__)

OWN = ("report", "publication")
"""Stages whose files name the run or its publication: every run makes its own."""


def check_sharing(origin: Root, root: Root) -> None:
    """Check that a run can share files with another.

    Raises:
        RunError: they are the same, or one of them is at a URL.
    """
    folders = [run_storage(storage) for storage in (origin, root)]
    for storage in folders:
        if isinstance(storage, RemoteStorage):
            raise RunError(
                f"{storage.address}: only folders of this machine can share files, not an object "
                "store; leave out --from"
            )
    if folders[0].root.resolve() == folders[1].root.resolve():
        raise RunError(f"{root}: --from names the run itself; leave it out")


def share(origin: Run, run: Run) -> None:
    """Link, or else copy, every unfinished file of *run* that *origin* has."""
    counts = Counter[str]()
    # Without a lock, a file that is just replaced differs from its checksum, and is made again.
    lock = origin.storage.lock if os.access(origin.root, os.W_OK) else contextlib.nullcontext
    for stage in stages_of(run.settings):
        for unit in run.remaining(stage) if stage not in OWN else ():
            with lock(run.lock_of(stage, unit)):
                counts[_share_unit(origin, run, stage, unit)] += 1
    text = "shared with %s: %d files linked, %d copied (a link needs the same disk)"
    logger.info(text, origin.address, counts["linked"], counts["copied"])


def _share_unit(origin: Run, run: Run, stage: str, unit: int) -> str:
    """Share one output with its SHA-256; return "linked", "copied", or "" if it does not exist."""
    names = [*run.beside(stage, unit), run.name(stage, unit)]
    try:
        # The other run may lack the stage or the unit, and so have no name for it.
        receipt = read_receipt(origin.storage.fetch(names[-1]))
        if receipt.fingerprint != run.fingerprint(stage, unit) and not (
            stage == "embeddings"
            and run.state(stage, unit) == "missing"
            and has_same_vectors(receipt, run, unit)
        ):
            return ""
        sums = {name: origin.storage.noted_sha256(name) for name in names}
        if not all(sums.values()):
            return ""
        write_record(run, stage, unit, Record(sums))
        for name in names:
            how = link_file(origin.storage.fetch(name), run.root / name, run.root)
    except (FileNotFoundError, CorruptFileError):
        return ""  # The run makes it again.
    return how
