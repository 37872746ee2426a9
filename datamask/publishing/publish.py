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
from datamask.errors import HubUnavailableError, PublicationError, RunError
from datamask.publishing.access import token_for
from datamask.publishing.folder import write_folder
from datamask.publishing.retries import call_hub
from datamask.publishing.upload import Upload
from datamask.runs.files import write_text_file
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run

logger = logging.getLogger(__name__)

SHOWN = 20
"""Maximum number of files that a dry run lists per kind of change."""


def publish(run: Run, compute: Compute) -> Receipt:
    """Write `publication/`, upload it unless `dry_run`, verify, tag, and write published.json.

    The token comes from HF_TOKEN and the address from HF_ENDPOINT. An existing tag of the same name
    is moved at the end.

    Raises:
        RunError: the subset is not up to date, or `publication` is not set.
        PublicationError: the Hub refuses, the repository contains files of others, or the uploaded
            files differ from the local ones.
        HubUnavailableError: transient faults persisted through all attempts.

    After both errors the tag is where it was, unless the message says that it is missing.
    """
    publication = run.settings.publication
    if publication is None:
        raise RunError(f"{run.root}: nothing to publish to; set publication.repository")
    token = os.environ.get("HF_TOKEN", "") if publication.dry_run else token_for(publication)
    files = write_folder(run, publication)
    record: dict[str, Any] = {"dry_run": publication.dry_run, "repository": publication.repository}
    upload = Upload(publication, run.root / "publication", files, token)
    if publication.dry_run:
        record |= _show_changes(upload)
    else:
        record |= upload.run()
    rows = sum(run.receipt("subset", unit).rows for unit in range(run.num_units("subset")))
    size = sum(file.size for file in files)
    metrics = {"files": len(files), "bytes": size, "dry_run": publication.dry_run}
    receipt = run.make_receipt("publication", 0, rows, metrics)
    record["files"] = [
        {"path": file.path, "size": file.size, "sha256": file.sha256} for file in files
    ]
    text = json.dumps({"receipt": asdict(receipt), **record}, indent=2, sort_keys=True)
    write_text_file(run.local_path("publication"), text + "\n", run.storage)
    return receipt


def _show_changes(upload: Upload) -> dict[str, Any]:
    """Log what publishing would change or why it would be refused; never fail because of it."""
    name, count = upload.name, len(upload.files)
    if not name or not os.environ.get("HF_TOKEN", "").strip():
        missing = "HF_TOKEN is not set" if name else "publication.repository is not set"
        logger.info("dry run: %d files; not compared with the Hub: %s", count, missing)
        return {}
    try:
        changes = call_hub(f"{name}: comparing", upload.compare, attempts=1)
    except HubUnavailableError as error:
        logger.warning("dry run: %d files; not compared with the Hub: %s", count, error)
        return {}
    except PublicationError as error:
        logger.warning("dry run: %d files; would be refused: %s", count, error)
        return {"refused": str(error)}
    for what, paths in changes.items():
        for path in paths[:SHOWN]:
            logger.info("dry run: would %s %s", what, path)
    counts = ", ".join(f"{what} {len(paths):,}" for what, paths in changes.items())
    logger.info("dry run: %s: would %s of %d files", name, counts, count)
    return {"changes": changes}
