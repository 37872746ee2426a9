"""Stage `publication`: upload the subset as a dataset repository, verify it and tag it.

`folder` writes the content of the repository to `publication/`, `upload` transfers it to the Hub,
and published.json records the result. A dry run writes the same folder and shows what would change.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict
from typing import Any

from datamask.config.compute import Compute
from datamask.config.outputs import Publication
from datamask.errors import HubUnavailableError, PublicationError, RunError
from datamask.publishing.access import token_for
from datamask.publishing.folder import LocalFile, write_folder
from datamask.publishing.retries import Patience
from datamask.publishing.upload import Upload
from datamask.runs.files import replace_file
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run

logger = logging.getLogger(__name__)

SHOWN = 20
"""Most files that a dry run lists per kind of change."""


def publish(run: Run, compute: Compute, patience: Patience | None = None) -> Receipt:
    """Write `publication/`, upload it unless `dry_run`, verify, tag, and write published.json.

    The token comes from HF_TOKEN and the address from HF_ENDPOINT. An existing tag of the same name
    is moved at the end.

    Raises:
        RunError: the subset is not up to date, or `publication` is not set.
        PublicationError: the Hub refuses, the repository contains files of others, or the uploaded
            files differ from the local ones. The tag was not moved.
        HubUnavailableError: transient faults persisted through all attempts. The tag was not moved.
    """
    publication = run.settings.publication
    if publication is None:
        raise RunError(f"{run.root}: nothing to publish to; set publication.repository")
    token = "" if publication.dry_run else token_for(publication)
    files = write_folder(run, publication)
    record: dict[str, Any] = {"dry_run": publication.dry_run, "repository": publication.repository}
    if publication.dry_run:
        record |= _show_changes(publication, files)
    else:
        record |= Upload(publication, token, patience or Patience()).run(files)
    rows = sum(run.receipt("subset", unit).rows for unit in range(run.num_units("subset")))
    size = sum(file.size for file in files)
    metrics = {"files": len(files), "bytes": size, "dry_run": publication.dry_run}
    receipt = run.make_receipt("publication", 0, rows, metrics)
    record["files"] = [
        {"path": file.path, "size": file.size, "sha256": file.sha256} for file in files
    ]
    with replace_file(run.local_path("publication"), run.storage) as temporary:
        text = json.dumps({"receipt": asdict(receipt), **record}, indent=2, sort_keys=True)
        temporary.write_text(text + "\n", encoding="utf-8")
    return receipt


def _show_changes(publication: Publication, files: list[LocalFile]) -> dict[str, Any]:
    """Log what publishing would change or why it would be refused; never fail because of it."""
    name, token = publication.repository, os.environ.get("HF_TOKEN", "").strip()
    if not name or not token:
        missing = "HF_TOKEN is not set" if name else "publication.repository is not set"
        logger.info("dry run: %d files; not compared with the Hub: %s", len(files), missing)
        return {}
    try:
        changes = Upload(publication, token, Patience(attempts=1)).compare(files)
    except HubUnavailableError as error:
        logger.warning("dry run: %d files; not compared with the Hub: %s", len(files), error)
        return {}
    except PublicationError as error:
        logger.warning("dry run: %d files; would be refused: %s", len(files), error)
        return {"refused": str(error)}
    for what, paths in changes.items():
        for path in paths[:SHOWN]:
            logger.info("dry run: would %s %s", what, path)
    counts = ", ".join(f"{what} {len(paths)}" for what, paths in changes.items())
    logger.info("dry run: %s: would %s of %d files", name, counts, len(files))
    return {"changes": changes}
