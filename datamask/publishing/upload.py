"""Upload a dataset repository: readers of `main` and of the tag see all of it or nothing.

The files go to the branch `STAGING` first, in as many commits as the client needs. Their hashes in
the Hub's listing are compared with the checksums that the run recorded, and the files are read
back. One commit then copies all changes to `main`; it transfers no bytes, and requires that `main`
has not moved. The tag comes last.

Every attempt first reads the head of the branch, so a commit whose response was lost is found
instead of repeated, and files that have arrived are not sent again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationCopy, CommitOperationDelete, HfApi, HfFileSystem

from datamask.config.outputs import Publication
from datamask.errors import DatamaskError, PublicationError
from datamask.publishing.card import is_edited, is_our_card
from datamask.publishing.folder import LocalFile
from datamask.publishing.retries import call_hub

logger = logging.getLogger(__name__)

STAGING = "datamask-upload"

MOVING = "datamask-moving-"
"""Beginning of the name of a tag that exists while another is moved."""

OURS = re.compile(
    r"(data|sample|scores|tokens)/(.+/)?train-\d{5}-of-\d{5}\.parquet|pictures/[^/]+\.png"
    r"|mask_model/model\.(json|safetensors)"
)
"""Files of earlier publications, which are deleted if they are no longer part of the dataset."""

LOADED = re.compile(r"(data/[^/]+|sample|scores|tokens)/train-[^/]*\.parquet")
"""Files that the configurations of the card load."""

AT_ONCE = 8
"""Number of files read back at once."""

END_BYTES = 64 * 1024
"""Bytes that are compared at the end of each file: most footers, and the last pages."""


class Upload:
    """The upload of one publication: *files*, which are all in *folder*."""

    def __init__(
        self, publication: Publication, folder: Path, files: list[LocalFile], token: str
    ) -> None:
        self.publication, self.name = publication, publication.repository
        self.folder, self.files = folder, files
        self.api: Any = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, token=token)
        self.repository: dict[str, Any] = {"repo_id": self.name, "repo_type": "dataset"}
        self.new_tag = False
        """True if the tag was set or moved."""
        self.missing = ""
        """Message about the missing tag, while it is deleted and not yet made again; else empty."""
        self.edited = ""
        """Commit of `main` whose card somebody has edited; empty if none has."""

    def run(self) -> dict[str, Any]:
        """Upload, verify and tag; return the record for published.json."""
        name, tag = self.name, self.publication.tag
        call_hub(f"{name}: creating the repository", self.create)
        first, changes = call_hub(f"{name}: listing main", partial(self.look, "main"))
        head, staged = first, ""
        if any(changes.values()):
            size = sum(file.size for file in self.files) / 1e6
            logger.info("%s: sending what is new of %d files, %.1f MB", name, len(self.files), size)
            staged = call_hub(f"{name}: sending files", partial(self.stage, first))
        if staged or call_hub(f"{name}: tag {tag}", self.tags).get(tag) != first:
            logger.info("%s: reading %d files back", name, len(self.files))
            read = partial(read_back, self.api, name, staged or first, self.files)
            call_hub(f"{name}: reading back", read)
        if staged:
            head = call_hub(f"{name}: commit on main", partial(self.move_main, staged))
        try:
            call_hub(f"{name}: tag {tag}", partial(self.tag, head))
        except DatamaskError as error:
            raise type(error)(f"{error}{self.missing}") from None
        if staged:
            with contextlib.suppress(Exception):  # The branch does no harm if it stays.
                self.api.delete_branch(**self.repository, branch=STAGING)
        if head == first:
            logger.info("%s: already up to date at %s; nothing was sent", name, head)
        url = f"{self.api.endpoint}/datasets/{name}"
        logger.info("published: %s, tag %s", url, tag)
        made = {"new_commit": head != first, "new_tag": self.new_tag}
        return {"commit": head, "tag": tag, "url": url, **made}

    def create(self) -> None:
        """Create the repository unless it exists."""
        if not self.api.repo_exists(**self.repository):
            private = self.publication.private
            self.api.create_repo(**self.repository, private=private, exist_ok=True)

    def compare(self) -> dict[str, list[str]]:
        """List paths that publishing would add, replace or delete."""
        if self.api.repo_exists(**self.repository):
            return self.look("main")[1]
        return self.changes({})

    def look(self, revision: str) -> tuple[str, dict[str, list[str]]]:
        """Return the commit of a revision, and the paths where it differs from the local files.

        Raises:
            PublicationError: the repository is public or `main` holds files of others, against the
                settings.
        """
        info = self.api.repo_info(**self.repository, revision=revision)
        if self.publication.private and info.private is False:
            raise PublicationError(
                f"{self.name}: is public; make it private on the Hub, or set "
                "publication.private to false"
            )
        listing = self.api.list_repo_tree(**self.repository, revision=info.sha, recursive=True)
        remote = {entry.path: entry for entry in listing if hasattr(entry, "size")}
        if revision == "main":
            self.refuse_others(info.sha, set(remote) - {".gitattributes"})
        return info.sha, self.changes(remote)

    def changes(self, remote: dict[str, Any]) -> dict[str, list[str]]:
        """Return paths to add to a listing of the Hub, to replace in it and to delete from it."""
        ours = {file.path for file in self.files}
        differing = [f.path for f in self.files if f.path in remote and not f.is_at(remote[f.path])]
        return {
            "add": [file.path for file in self.files if file.path not in remote],
            "replace": differing,
            "delete": [
                path for path in sorted(remote) if OURS.fullmatch(path) and path not in ours
            ],
        }

    def refuse_others(self, commit: str, paths: set[str]) -> None:
        """Refuse a repository with files unless datamask wrote its card."""
        if not paths:
            return
        foreign = [path for path in paths if LOADED.fullmatch(path) and not OURS.fullmatch(path)]
        if foreign:
            raise PublicationError(
                f"{self.name}: {min(foreign)} was not published by datamask, but who loads the "
                "dataset would load it too; rename or delete it on the Hub, then publish again"
            )
        if "README.md" in paths:
            with tempfile.TemporaryDirectory() as folder:
                path = self.api.hf_hub_download(
                    **self.repository, filename="README.md", revision=commit, local_dir=folder
                )
                card = Path(path).read_text(encoding="utf-8", errors="replace")
            if is_our_card(card):
                if is_edited(card) and self.edited != commit:
                    self.edited = commit
                    logger.warning(
                        "%s: somebody edited README.md; publishing replaces that text, which stays "
                        "in commit %s",
                        self.name,
                        commit,
                    )
                return
        raise PublicationError(
            f"{self.name}: holds files that were not published by datamask; empty it, or choose "
            "another publication.repository"
        )

    def stage(self, start: str) -> str:
        """Bring all files to the staging branch; return a commit that has all of them."""
        branch = {"branch": STAGING, "revision": start, "exist_ok": True}
        self.api.create_branch(**self.repository, **branch)
        commit, changes = self.look(STAGING)
        if not changes["add"] and not changes["replace"]:
            return commit
        sent = self.api.upload_folder(
            **self.repository,
            folder_path=self.folder,
            revision=STAGING,
            parent_commit=commit,
            commit_message=f"Publish {self.publication.tag}",
        )
        return self.verified(sent.oid)

    def move_main(self, staged: str) -> str:
        """Copy changes from the staged commit to `main`, in one commit that is returned."""
        head, changes = self.look("main")
        if not any(changes.values()):
            return head
        copied = changes["add"] + changes["replace"]
        copies = [CommitOperationCopy(path, path, src_revision=staged) for path in copied]
        made = self.api.create_commit(
            **self.repository,
            operations=[*copies, *map(CommitOperationDelete, changes["delete"])],
            revision="main",
            parent_commit=head,
            commit_message=f"Publish {self.publication.tag}",
        )
        return self.verified(made.oid)

    def verified(self, commit: str) -> str:
        """Return the commit, after comparing its sizes and hashes with the run's files.

        Raises:
            PublicationError: a file is missing or differs.
        """
        changes = self.look(commit)[1]
        if differing := changes["add"] + changes["replace"]:
            raise PublicationError(
                f"{self.name}@{commit}: {differing[0]} differs from the local file "
                f"({len(differing)} do); the tag was not set; publish again"
            )
        return commit

    def tags(self) -> dict[str, str]:
        """Return the commits of all tags, by name."""
        refs = self.api.list_repo_refs(**self.repository)
        return {tag.name: tag.target_commit for tag in refs.tags}

    def tag(self, commit: str) -> None:
        """Set or move the tag; safe to repeat.

        The Hub cannot move a tag, only delete it and create one. So the right to create is proved
        by another tag first; it stays until the move is done.
        """
        tags, tag = self.tags(), self.publication.tag
        at, probe = tags.get(tag), f"{MOVING}{tag}"
        if at not in (None, commit):
            logger.warning(
                "%s: tag %s moves from %s to %s, and readers of it get an error for a moment; "
                "publication.tag=%s would keep the old version",
                *(self.name, tag, at, commit, next_free(tag, tags)),
            )
            if tags.get(probe) not in (None, commit):
                self.api.delete_tag(**self.repository, tag=probe)
            if tags.get(probe) != commit:
                self.api.create_tag(**self.repository, tag=probe, revision=commit)
            self.missing = (
                f". Tag {tag} is missing on the Hub, so its readers get an error: it was at {at}. "
                f"Publish again, or run `hf repos tag create {self.name} {tag} --type dataset "
                f"--revision {at}`"
            )
            self.api.delete_tag(**self.repository, tag=tag)
        if at != commit:
            try:
                self.api.create_tag(**self.repository, tag=tag, revision=commit)
            except BaseException:
                with contextlib.suppress(Exception):
                    if at is not None:
                        self.api.create_tag(**self.repository, tag=tag, revision=at)
                        self.missing = ""
                raise
            self.new_tag = True
        self.missing = ""
        if probe in self.tags():
            with contextlib.suppress(Exception):  # It does no harm if it stays.
                self.api.delete_tag(**self.repository, tag=probe)


def next_free(tag: str, tags: Iterable[str]) -> str:
    """Return the tag with the next number that no tag has: v2 after v1, v1.1 after v1.0."""
    start, number = re.fullmatch(r"(.*?)(\d*)", tag).groups()  # type: ignore[union-attr]
    taken, following = {*tags, tag}, int(number or 1) + 1
    while f"{start}{following}" in taken:
        following += 1
    return f"{start}{following}"


def read_back(api: Any, repository: str, commit: str, files: list[LocalFile]) -> None:
    """Compare the end of all files, and the whole smallest Parquet file, with the files sent.

    The Hub's listing does not prove that the files can be read. The end of a Parquet file holds its
    footer, and costs one or two requests.

    Raises:
        PublicationError: the Hub serves other content, or a file is missing.
    """
    revision = f"datasets/{repository}@{commit}"
    filesystem = HfFileSystem(endpoint=api.endpoint, token=api.token, skip_instance_cache=True)
    filesystem.find(revision)  # This is one listing instead of a request per file.
    parquet = (file for file in files if file.path.endswith(".parquet"))
    smallest = min(parquet, key=lambda file: (file.size, file.path))

    def compare(file: LocalFile) -> None:
        start = 0 if file == smallest else max(0, file.size - END_BYTES)
        path = f"{revision}/{file.path}"
        try:
            # Without a cache nothing else is fetched.
            with filesystem.open(path, cache_type="none") as remote, file.source.open("rb") as sent:
                remote.seek(start)
                sent.seek(start)
                is_same = remote.read() == sent.read()
        except FileNotFoundError:
            is_same = False
        if not is_same:
            raise PublicationError(
                f"hf://{path}: is not served as it was sent; the tag was not set; publish again"
            )

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(compare, files))
