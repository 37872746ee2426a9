"""Upload of a dataset repository in one commit, so that readers see all changes or none.

`main` moves once, by a commit that requires its parent. The tag is set after every size and hash in
the remote listing matches and the files were read back through hf:// paths. Files that the
repository already has are not sent, and an up-to-date repository gets no commit. Every attempt
first reads the head, so a commit whose response was lost is found instead of repeated.

More than `MOST_COMMIT_FILES` changes are first committed to the branch `STAGING` in bounded commits
and verified there; the commit on `main` then only references objects that the Hub already has.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datamask.config.outputs import Publication
from datamask.errors import PublicationError
from datamask.publishing.card import is_our_card
from datamask.publishing.folder import LocalFile
from datamask.publishing.readback import read_back
from datamask.publishing.retries import Patience, bound_silence
from datamask.runs.in_progress import advance

logger = logging.getLogger(__name__)

MOST_COMMIT_FILES = 200
"""Most changes in a direct commit: the Hub ends a commit request after 60 seconds."""

FILES_AT_ONCE = 16
"""Files per pre-upload request, which the client sends in parallel."""

STAGING_COMMIT_FILES = 100
STAGING = "datamask-upload"

OURS = re.compile(
    r"(data|sample|scores)/(.+/)?train-\d{5}-of-\d{5}\.parquet|pictures/[^/]+\.png"
    r"|mask_model/model\.(json|safetensors)"
)
"""Files of earlier publications, which are deleted if they are no longer part of the dataset."""


class Upload:
    """The upload of one publication."""

    def __init__(self, publication: Publication, token: str, patience: Patience) -> None:
        from huggingface_hub import HfApi

        self.publication, self.name = publication, publication.repository
        self.patience, self.call = patience, patience.call
        self.api: Any = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, token=token)
        self.where: dict[str, Any] = {"repo_id": publication.repository, "repo_type": "dataset"}

    def run(self, files: list[LocalFile]) -> dict[str, Any]:
        """Upload, verify and tag; returns the record for published.json."""
        from huggingface_hub.errors import HfHubHTTPError

        name = self.name
        if not self.exists():
            how = {**self.where, "private": self.publication.private, "exist_ok": True}
            self.call(f"{name}: creating the repository", self.api.create_repo, **how)
        first, remote = self.look("main")
        self.refuse_others(first, remote)
        is_large = len(self.changes(files, remote)) > MOST_COMMIT_FILES
        if is_large:
            self.read_back(self.stage(files, first), files)
        head = self.bring("main", files, checked=first)
        tag = f"{name}: tag {self.publication.tag}"
        if not is_large and self.call(tag, self.tagged) != head:
            self.read_back(head, files)
        self.call(tag, self.tag, head)
        if is_large:
            with contextlib.suppress(HfHubHTTPError):
                # The branch does no harm if it stays.
                self.api.delete_branch(**self.where, branch=STAGING)
        if head == first:
            logger.info("%s: already up to date at %s; nothing was sent", name, head)
        url = f"{self.api.endpoint}/datasets/{name}"
        logger.info("published: %s, tag %s", url, self.publication.tag)
        return {
            "commit": head,
            "new_commit": head != first,
            "tag": self.publication.tag,
            "url": url,
        }

    def exists(self) -> bool:
        """Whether there is such a repository."""
        action = f"{self.name}: checking the repository"
        return bool(self.call(action, self.api.repo_exists, **self.where))

    def look(self, revision: str) -> tuple[str, dict[str, Any]]:
        """The commit of a revision, and its files by path."""

        def ask() -> tuple[str, dict[str, Any]]:
            info = self.api.repo_info(**self.where, revision=revision)
            if self.publication.private and info.private is False:
                raise PublicationError(
                    f"{self.name}: is public; make it private on the Hub, or set "
                    "publication.private to false"
                )
            entries = self.api.list_repo_tree(**self.where, revision=info.sha, recursive=True)
            return info.sha, {entry.path: entry for entry in entries if hasattr(entry, "size")}

        return self.call(f"{self.name}: listing {revision}", ask)

    def compare(self, files: list[LocalFile]) -> dict[str, list[str]]:
        """Paths that publishing would add, replace or delete."""
        remote: dict[str, Any] = {}
        if self.exists():
            head, remote = self.look("main")
            self.refuse_others(head, remote)
        changes = self.changes(files, remote)
        sent = [change.path for change in changes if isinstance(change, LocalFile)]
        return {
            "add": [path for path in sent if path not in remote],
            "replace": [path for path in sent if path in remote],
            "delete": [change for change in changes if isinstance(change, str)],
        }

    def refuse_others(self, commit: str, remote: dict[str, Any]) -> None:
        """Refuse a repository with files unless datamask wrote its card or `overwrite` is set."""
        if self.publication.overwrite or not set(remote) - {".gitattributes"}:
            return
        if "README.md" in remote:

            def fetch() -> str:
                with tempfile.TemporaryDirectory() as folder:
                    path = self.api.hf_hub_download(
                        **self.where, filename="README.md", revision=commit, local_dir=folder
                    )
                    return Path(path).read_text(encoding="utf-8", errors="replace")

            if is_our_card(self.call(f"{self.name}: reading the card", fetch)):
                return
        raise PublicationError(
            f"{self.name}: holds files that were not published by datamask; choose another "
            "publication.repository, or set publication.overwrite"
        )

    @staticmethod
    def changes(files: list[LocalFile], remote: dict[str, Any]) -> list[LocalFile | str]:
        """Files to add, and paths of files of earlier publications to delete."""
        ours = {file.path for file in files}
        stale = [path for path in sorted(remote) if OURS.fullmatch(path) and path not in ours]
        return [*(file for file in files if not file.matches(remote.get(file.path))), *stale]

    def read_back(self, commit: str, files: list[LocalFile]) -> None:
        """Compare the files that a commit serves with the local ones, before the tag is set."""
        logger.info("%s: reading %d files back", self.name, len(files))
        self.call(f"{self.name}: reading back", read_back, self.api, self.name, commit, files)

    def stage(self, files: list[LocalFile], start: str) -> str:
        """Commit all files to the staging branch in bounded commits; returns its verified head."""
        branch = {**self.where, "branch": STAGING, "revision": start, "exist_ok": True}
        self.call(f"{self.name}: branch {STAGING}", self.api.create_branch, **branch)
        return self.bring(STAGING, files, at_most=STAGING_COMMIT_FILES)

    def bring(
        self,
        revision: str,
        files: list[LocalFile],
        *,
        at_most: int | None = None,
        checked: str = "",
    ) -> str:
        """Commit changes until the listing of a branch matches the files; returns its head.

        A commit has *at_most* changes, or all; a head *checked* contains no files of others.

        Raises:
            PublicationError: after a commit, a size or hash still differs from the local file.
        """
        failures = 0
        left: int | None = None
        while True:
            head, remote = self.look(revision)
            if head != checked and revision == "main":
                # Another client may have committed files since the last check.
                self.refuse_others(head, remote)
            changes = self.changes(files, remote)
            if not changes:
                return head
            if left is not None and len(changes) >= left:
                path = changes[0] if isinstance(changes[0], str) else changes[0].path
                raise PublicationError(
                    f"{self.name}@{head}: {path} differs from the local file ({len(changes)} do) "
                    "after the commit; the tag was not set; publish again"
                )
            operations = self.prepare(revision, changes[:at_most])
            try:
                bound_silence()
                self.api.create_commit(
                    **self.where,
                    operations=operations,
                    revision=revision,
                    parent_commit=head,
                    commit_message=f"Publish {self.publication.tag}",
                )
            except Exception as error:
                failures += 1
                action = f"{self.name}: commit on {revision}"
                self.patience.wait(action, error, failures, conflict=True)
            else:
                failures, left = 0, len(changes)

    def prepare(self, revision: str, changes: Sequence[LocalFile | str]) -> list[Any]:
        """The operations of a commit, after sending the contents that the Hub does not have."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        files = [change for change in changes if isinstance(change, LocalFile)]
        additions = [CommitOperationAdd(file.path, file.source) for file in files]
        total, sent = sum(file.size for file in files), 0
        for start in range(0, len(files), FILES_AT_ONCE):
            part = files[start : start + FILES_AT_ONCE]
            sent += sum(file.size for file in part)
            names = " to ".join(dict.fromkeys((part[0].path, part[-1].path)))
            progress = f"{sent / 1e6:.1f} of {total / 1e6:.1f} MB"
            logger.info("%s: sending %s (%s)", revision, names, progress)
            advance(int(sent / 1e6), int(total / 1e6), "MB")
            now = {"additions": additions[start : start + FILES_AT_ONCE], "revision": revision}
            action = f"{self.name}: sending {names}"
            self.call(action, self.api.preupload_lfs_files, **self.where, **now)
        deletions = (change for change in changes if isinstance(change, str))
        return [*additions, *(CommitOperationDelete(path) for path in deletions)]

    def tagged(self) -> str | None:
        """The commit of the tag; None if the tag does not exist."""
        refs = self.api.list_repo_refs(**self.where)
        return {tag.name: tag.target_commit for tag in refs.tags}.get(self.publication.tag)

    def tag(self, commit: str) -> None:
        """Set or move the tag; safe to repeat."""
        at, tag = self.tagged(), self.publication.tag
        if at == commit:
            return
        if at is not None:
            logger.warning("%s: tag %s moves from %s to %s", self.name, tag, at, commit)
            self.api.delete_tag(**self.where, tag=tag)
        try:
            self.api.create_tag(**self.where, tag=tag, revision=commit)
        except Exception:
            # The Hub cannot move a tag, so restore the deleted one.
            with contextlib.suppress(Exception):
                if at is not None:
                    self.api.create_tag(**self.where, tag=tag, revision=at)
            raise
