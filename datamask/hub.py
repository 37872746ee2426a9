"""Publishing a subset, so that readers see all of it or none of it.

`main` moves once, by one commit that is guarded by its parent; the tag comes after the remote has
been listed and every size and hash compared. Publishing is idempotent: what the repository already
holds is not sent, and a run that is published already makes no commit. Every attempt begins by
looking at the head, so a commit whose answer was lost is found instead of made twice.

Above `MOST_COMMIT_FILES` changes, the files first go to the branch `STAGING` in bounded commits and
are verified there; the one commit on `main` then only names objects the Hub holds already.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from datamask.card import is_our_card
from datamask.config import Compute, Publication
from datamask.errors import PublicationError, RunError
from datamask.hub_access import token_for
from datamask.hub_calls import Patience
from datamask.hub_folder import LocalFile, write_folder
from datamask.store import Receipt, Run, replace_file

logger = logging.getLogger(__name__)

MOST_COMMIT_FILES = 200
"""A commit request ends after 60 seconds on the Hub, so one that adds more is prepared first."""

STAGING_COMMIT_FILES = 100
STAGING = "datamask-upload"


def publish(
    run: Run,
    compute: Compute,
    *,
    attempts: int = 7,
    base_seconds: float = 1.0,
    sleep: Callable[[float], None] = time.sleep,
) -> Receipt:
    """Write `publication/`, upload it unless `dry_run`, verify, tag, and note it in published.json.

    The token is read from the environment (HF_TOKEN) and the address from HF_ENDPOINT. A tag of
    that name that points elsewhere is moved, last of all.

    Args:
        run: with an up-to-date subset and composition.
        compute: not used; every stage has the same signature.
        attempts: tries of each call to the Hub.
        base_seconds: wait after a first transient failure.
        sleep: waits that many seconds.

    Raises:
        RunError: there is nothing to publish yet, or nowhere to.
        PublicationError: the Hub refuses, the repository holds somebody else's files, or what
            arrived is not what was sent. The tag has not moved.
        HubUnavailableError: transient faults outlasted the attempts. The tag has not moved.
    """
    publication = run.settings.publication
    if publication is None:
        raise RunError(f"{run.root}: nothing to publish to; set publication.repository")
    token = "" if publication.dry_run else token_for(publication)
    files = write_folder(run, publication)
    record: dict[str, Any] = {"dry_run": publication.dry_run, "repository": publication.repository}
    if not publication.dry_run:
        patience = Patience(attempts, base_seconds, sleep)
        record |= _Upload(publication, token, patience).run(files)
    rows = sum(run.receipt("subset", unit).rows for unit in range(run.num_units("subset")))
    figures = {
        "files": len(files),
        "bytes": sum(file.size for file in files),
        "dry_run": publication.dry_run,
    }
    receipt = run.make_receipt("publication", 0, rows, figures)
    record["files"] = [
        {"path": file.path, "size": file.size, "sha256": file.sha256} for file in files
    ]
    with replace_file(run.path("publication"), root=run.root) as temporary:
        text = json.dumps({"receipt": asdict(receipt), **record}, indent=2, sort_keys=True)
        temporary.write_text(text + "\n")
    return receipt


class _Upload:
    """One publication's talk with the Hub."""

    def __init__(self, publication: Publication, token: str, patience: Patience) -> None:
        from huggingface_hub import HfApi

        self.publication = publication
        self.token = token
        self.patience = patience
        self.api: Any = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, token=token)
        self.where: dict[str, Any] = {
            "repo_id": publication.repository,
            "repo_type": "dataset",
        }

    def run(self, files: list[LocalFile]) -> dict[str, Any]:
        """Upload, verify and tag; what published.json tells of it."""
        from huggingface_hub.errors import HfHubHTTPError

        name = self.publication.repository
        if not self.call(
            f"{name}: looking for the repository", lambda: self.api.repo_exists(**self.where)
        ):
            self.call(
                f"{name}: creating the repository",
                lambda: self.api.create_repo(
                    **self.where, private=self.publication.private, exist_ok=True
                ),
            )
        first, remote = self.look("main")
        self.refuse_others(first, remote)
        is_large = len(self.changes(files, remote)) > MOST_COMMIT_FILES
        if is_large:
            self.stage(files, first)
        head = self.bring("main", files, checked=first)
        self.call(f"{name}: tag {self.publication.tag}", lambda: self.tag(head))
        if is_large:
            with contextlib.suppress(HfHubHTTPError):
                # Of no consequence if it stays: everything it holds is on main.
                self.api.delete_branch(**self.where, branch=STAGING)
        if head == first:
            logger.info("%s: already up to date at %s; nothing was sent", name, head)
        return {
            "commit": head,
            "new_commit": head != first,
            "tag": self.publication.tag,
            "url": f"{self.api.endpoint}/datasets/{name}",
        }

    def call(self, action: str, function: Callable[[], Any]) -> Any:
        return self.patience.call(action, function, self.token)

    def look(self, revision: str) -> tuple[str, dict[str, Any]]:
        """The commit a revision is at, and its files by path."""
        name = self.publication.repository

        def ask() -> tuple[str, dict[str, Any]]:
            info = self.api.repo_info(**self.where, revision=revision)
            if self.publication.private and info.private is False:
                raise PublicationError(
                    f"{name}: is public; make it private on the Hub, or set publication.private "
                    "to false"
                )
            entries = self.api.list_repo_tree(**self.where, revision=info.sha, recursive=True)
            return info.sha, {entry.path: entry for entry in entries if hasattr(entry, "size")}

        commit, files = self.call(f"{name}: listing {revision}", ask)
        return commit, files

    def refuse_others(self, commit: str, remote: dict[str, Any]) -> None:
        """Refuse a repository with files, unless its card is one of ours."""
        name = self.publication.repository
        if not set(remote) - {".gitattributes"}:
            return
        if "README.md" in remote:

            def fetch() -> str:
                with tempfile.TemporaryDirectory() as folder:
                    path = self.api.hf_hub_download(
                        **self.where, filename="README.md", revision=commit, local_dir=folder
                    )
                    return Path(path).read_text(encoding="utf-8", errors="replace")

            if is_our_card(self.call(f"{name}: reading the card", fetch)):
                return
        raise PublicationError(
            f"{name}: holds files that were not published by datamask; choose another "
            "publication.repository, or empty this one first"
        )

    @staticmethod
    def changes(files: list[LocalFile], remote: dict[str, Any]) -> list[LocalFile | str]:
        """Files to add, and paths of earlier data files to delete. Other files are left alone."""
        ours = {file.path for file in files}
        stale = [
            path for path in sorted(remote) if path.startswith("data/train-") and path not in ours
        ]
        return [*(file for file in files if not file.matches(remote.get(file.path))), *stale]

    def stage(self, files: list[LocalFile], start: str) -> None:
        """Put all files on the staging branch in bounded commits, and verify them there."""
        self.call(
            f"{self.publication.repository}: branch {STAGING}",
            lambda: self.api.create_branch(
                **self.where, branch=STAGING, revision=start, exist_ok=True
            ),
        )
        self.bring(STAGING, files, at_most=STAGING_COMMIT_FILES)

    def bring(
        self,
        revision: str,
        files: list[LocalFile],
        *,
        at_most: int | None = None,
        checked: str = "",
    ) -> str:
        """Make a branch hold these files; its head, once a listing of it says that it does.

        Args:
            revision: the branch.
            files: what it shall hold.
            at_most: changes in one commit; None for all in one.
            checked: the head already known to hold nobody else's files.

        Raises:
            PublicationError: after a commit, a size or hash still differs from the local file's.
        """
        name = self.publication.repository
        failures = 0
        left: int | None = None
        while True:
            head, remote = self.look(revision)
            if head != checked and revision == "main":
                # Somebody may have committed since: their files are not ours to overwrite.
                self.refuse_others(head, remote)
            changes = self.changes(files, remote)
            if not changes:
                return head
            if left is not None and len(changes) >= left:
                path = changes[0] if isinstance(changes[0], str) else changes[0].path
                raise PublicationError(
                    f"{name}@{head}: {path} differs from the local file ({len(changes)} do) after "
                    "the commit; the tag was not set; publish again"
                )
            operations = self.prepare(revision, changes[:at_most])
            try:
                self.api.create_commit(
                    **self.where,
                    operations=operations,
                    revision=revision,
                    parent_commit=head,
                    commit_message=f"Publish {self.publication.tag}",
                )
            except Exception as error:
                failures += 1
                action = f"{name}: commit on {revision}"
                self.patience.wait(action, error, failures, self.token, conflict=True)
            else:
                failures, left = 0, len(changes)

    def prepare(self, revision: str, changes: Iterable[LocalFile | str]) -> list[Any]:
        """The commit's operations, their contents sent file by file; held contents are not."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        operations: list[Any] = []
        for change in changes:
            if isinstance(change, str):
                operations.append(CommitOperationDelete(change))
                continue
            addition = CommitOperationAdd(change.path, change.source)
            operations.append(addition)
            if change.path == "README.md":
                continue
            logger.info("%s: sending %s (%d bytes)", revision, change.path, change.size)
            self.call(
                f"{self.publication.repository}: sending {change.path}",
                lambda addition=addition: self.api.preupload_lfs_files(  # type: ignore[misc]
                    **self.where, additions=[addition], revision=revision
                ),
            )
        return operations

    def tag(self, commit: str) -> None:
        """Set the tag, moving it if it points elsewhere; safe to repeat."""
        refs = self.api.list_repo_refs(**self.where)
        at = {tag.name: tag.target_commit for tag in refs.tags}.get(self.publication.tag)
        if at == commit:
            return
        if at is not None:
            logger.warning(
                "%s: tag %s moves from %s to %s",
                self.publication.repository,
                self.publication.tag,
                at,
                commit,
            )
            self.api.delete_tag(**self.where, tag=self.publication.tag)
        self.api.create_tag(**self.where, tag=self.publication.tag, revision=commit)
