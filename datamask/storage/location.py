"""Where a run lives: a folder on this machine, or a URL with a mirror of it on this machine.

Everything that makes or reads a run's files works on local paths. For a run at a URL these lie in
its mirror (`remote_folder`): a file is brought there when it is asked for, and put into the store
before it appears there. A folder is known as a mirror by what lies beside it, in any process.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator

from datamask.errors import NOT_UTF8, RunError, is_utf8, without_secrets
from datamask.storage.cache import MARKER, make_mirror
from datamask.storage.remote import RemoteFolder

Root = Path | str
"""A run's folder, or its URL."""

RootParameter = Annotated[str, BeforeValidator(str)]
"""The same where it is validated, as a parameter of flows: plain text in JSON."""

READ_ONLY = ("hf", "http", "https", "ftp")
"""Protocols behind which there is no store: a commit for every file, or no way to write."""

_known: dict[tuple[int, Path], RemoteFolder] = {}


def locate(root: Root) -> Path:
    """The local folder of a run: itself, or the mirror of its URL.

    Raises:
        RunError: the URL cannot be a run's place.
    """
    text = str(root)
    if not is_utf8(os.path.abspath(text)):
        raise RunError(f"{text}: {NOT_UTF8}")
    if "://" not in text and any(c in os.path.abspath(text) for c in "*?[\\"):
        raise RunError(
            f"{text}: DuckDB would read *, ? or [ as a pattern and \\ as /; use another folder"
        )
    if isinstance(root, Path) or "://" not in text:
        if ":/" in text and text.partition(":/")[0].isalnum():
            raise RunError(f"{text}: a URL has two slashes after its colon")
        return Path(root)
    if text.startswith("file://"):
        return Path(text.removeprefix("file://"))
    url = text.rstrip("/")
    protocol, _, place = url.partition("://")
    if without_secrets(url) != url:
        raise RunError(
            f"{url}: a user, password, token or signature would be recorded; give it in the "
            "environment (AWS_ACCESS_KEY_ID, ...)"
        )
    if protocol in READ_ONLY:
        raise RunError(f"{url}: a run needs an object store, such as s3:// or gs://, or a folder")
    names = place.split("/")
    if not all(names) or {".", ".."} & {*names} or any(c in url for c in "*?[]#\\\0\n"):
        raise RunError(f"{url}: not a bucket and a prefix of plain names")
    # The last name is kept, because a report is titled by its run's folder.
    return make_mirror(hashlib.sha256(url.encode()).hexdigest()[:16], names[-1], url)


def remote_folder(root: Path) -> RemoteFolder | None:
    """What brings and puts the files of a mirror; None for a folder that is the run itself."""
    marker = root.parents[1] / MARKER if len(root.parents) > 1 else root / MARKER
    key = (os.getpid(), root)
    if key not in _known:
        if not marker.is_file():
            return None
        _known.setdefault(key, RemoteFolder(root, marker.read_text(encoding="utf-8").strip()))
    return _known[key]


def remote_folder_of(path: Path) -> RemoteFolder | None:
    """The same for a file anywhere in a run."""
    for folder in path.parents:
        if (folder / MARKER).is_file():
            inner = path.relative_to(folder).parts
            is_run = inner[0] == "run" and len(inner) > 2
            return remote_folder(folder / "run" / inner[1]) if is_run else None
    return None


def address_of(root: Path) -> str:
    """What users call a run: its URL if it has one, else its folder."""
    remote = remote_folder(root)
    return remote.address if remote else str(root)


def here(path: Path) -> Path:
    """A run's file in the version that counts, brought from the store if there is one."""
    remote = remote_folder_of(path)
    return remote.bring(path) if remote else path


def files_in(folder: Path, pattern: str) -> list[Path]:
    """The files directly in a folder of a run whose names fit a glob, brought here, sorted."""
    remote = remote_folder_of(folder / pattern)
    return remote.bring_all(folder, pattern) if remote else sorted(folder.glob(pattern))


def names_in(folder: Path, pattern: str) -> list[Path]:
    """The same without bringing them."""
    remote = remote_folder_of(folder / pattern)
    return remote.names(folder, pattern) if remote else sorted(folder.glob(pattern))


def remove_file(path: Path) -> None:
    """Delete a file of a run, if it is there; from the store first."""
    remote = remote_folder_of(path)
    if remote:
        remote.remove(path)
    path.unlink(missing_ok=True)


def save_record(path: Path) -> None:
    """Put a file that was written in place, such as a log, into the store, if there is one."""
    remote = remote_folder_of(path)
    if remote:
        remote.put(path, path)


@contextlib.contextmanager
def in_use(root: Path, *, whole_run: bool, most_bytes: int) -> Iterator[None]:
    """While a unit of work goes on: what it asks for stays; afterwards the mirror shrinks.

    Args:
        root: the run's local folder.
        whole_run: it looks at every shard, so neighbours are brought together.
        most_bytes: how large a mirror may be when nobody uses it.
    """
    remote = remote_folder(root)
    if remote is None:
        yield
        return
    with remote.in_use(whole_run=whole_run, most_bytes=most_bytes):
        yield
