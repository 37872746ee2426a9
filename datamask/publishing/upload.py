"""Bringing a dataset repository to a state, so that readers see all of it or none of it.

`main` moves once, by one commit that is guarded by its parent. The tag comes after the remote has
been listed, every size and hash compared, and the files read back through hf:// paths. What the
repository holds already is not sent, and a repository that is in that state gets no commit. Every
attempt begins by looking at the head, so a commit whose answer was lost is found instead of made
twice.

Above `MOST_COMMIT_FILES` changes, the files first go to the branch `STAGING` in bounded commits and
are verified there; the one commit on `main` then only names objects the Hub holds already.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from datamask.config.outputs import Publication
from datamask.errors import PublicationError
from datamask.publishing.card import is_our_card
from datamask.publishing.folder import LocalFile
from datamask.publishing.readback import read_back
from datamask.publishing.retries import Patience, bound_silence

logger = logging.getLogger(__name__)

MOST_COMMIT_FILES = 200
"""A commit request ends after 60 seconds on the Hub, so one that adds more is prepared first."""

FILES_AT_ONCE = 16
"""Files sent together: the client sends some at a time, and asks the Hub once for all of them."""

STAGING_COMMIT_FILES = 100
STAGING = "datamask-upload"

OURS = re.compile(r"(data|sample|scores)/(.+/)?train-\d{5}-of-\d{5}\.parquet|pictures/[^/]+\.png")
"""What an earlier publication of ours may have left: deleted if it is of another layout."""


class Upload:
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
            self.read_back(self.stage(files, first), files)
        head = self.bring("main", files, checked=first)
        tag = f"{name}: tag {self.publication.tag}"
        if not is_large and self.call(tag, self.tagged) != head:
            self.read_back(head, files)
        self.call(tag, lambda: self.tag(head))
        if is_large:
            with contextlib.suppress(HfHubHTTPError):
                # Of no consequence if it stays: everything it holds is on main.
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

    def call(self, action: str, function: Callable[[], Any]) -> Any:
        """Ask the Hub, patiently (see `Patience.call`)."""
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

    def compare(self, files: list[LocalFile]) -> dict[str, list[str]]:
        """Paths that publishing would add, replace or delete."""
        name = self.publication.repository
        remote: dict[str, Any] = {}
        if self.call(f"{name}: looking", lambda: self.api.repo_exists(**self.where)):
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
        """Refuse a repository with files, unless its card is one of ours or we are told to."""
        name = self.publication.repository
        if self.publication.overwrite or not set(remote) - {".gitattributes"}:
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
            "publication.repository, or set publication.overwrite"
        )

    @staticmethod
    def changes(files: list[LocalFile], remote: dict[str, Any]) -> list[LocalFile | str]:
        """Files to add, and paths of earlier ones of ours to delete. Others are left alone."""
        ours = {file.path for file in files}
        stale = [path for path in sorted(remote) if OURS.fullmatch(path) and path not in ours]
        return [*(file for file in files if not file.matches(remote.get(file.path))), *stale]

    def read_back(self, commit: str, files: list[LocalFile]) -> None:
        """Read what a commit serves; the tag is set only if it is what was sent."""
        name = self.publication.repository
        logger.info("%s: reading %d files back", name, len(files))
        self.call(f"{name}: reading back", lambda: read_back(self.api, name, commit, files))

    def stage(self, files: list[LocalFile], start: str) -> str:
        """Put all files on the staging branch in bounded commits; its head, verified."""
        self.call(
            f"{self.publication.repository}: branch {STAGING}",
            lambda: self.api.create_branch(
                **self.where, branch=STAGING, revision=start, exist_ok=True
            ),
        )
        return self.bring(STAGING, files, at_most=STAGING_COMMIT_FILES)

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
            checked: the head already known to hold no files of others.

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
                action = f"{name}: commit on {revision}"
                self.patience.wait(action, error, failures, self.token, conflict=True)
            else:
                failures, left = 0, len(changes)

    def prepare(self, revision: str, changes: Sequence[LocalFile | str]) -> list[Any]:
        """The commit's operations, their contents sent some files at a time; held ones are not."""
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
            self.call(
                f"{self.publication.repository}: sending {names}",
                lambda start=start: self.api.preupload_lfs_files(  # type: ignore[misc]
                    **self.where,
                    additions=additions[start : start + FILES_AT_ONCE],
                    revision=revision,
                ),
            )
        deletions = (change for change in changes if isinstance(change, str))
        return [*additions, *(CommitOperationDelete(path) for path in deletions)]

    def tagged(self) -> str | None:
        """The commit that the tag points at; None if there is no such tag."""
        refs = self.api.list_repo_refs(**self.where)
        return {tag.name: tag.target_commit for tag in refs.tags}.get(self.publication.tag)

    def tag(self, commit: str) -> None:
        """Set the tag, moving it if it points elsewhere; safe to repeat."""
        at = self.tagged()
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
        try:
            self.api.create_tag(**self.where, tag=self.publication.tag, revision=commit)
        except Exception:
            # The Hub cannot move a tag; readers of the old one keep it until this succeeds.
            with contextlib.suppress(Exception):
                if at is not None:
                    self.api.create_tag(**self.where, tag=self.publication.tag, revision=at)
            raise
