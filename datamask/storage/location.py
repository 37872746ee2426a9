"""Open a run's storage: in a folder, or at the URL of an object store.

Only `open_storage` distinguishes the two.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator

from datamask.errors import NOT_UTF8, RunError, is_utf8
from datamask.showing import without_secrets
from datamask.storage.contents import Contents
from datamask.storage.local import Storage
from datamask.storage.remote import RemoteStorage

Root = Path | str
"""A run's folder, or its URL."""

RootParameter = Annotated[str, BeforeValidator(str)]
"""The same as a parameter of flows: plain text in JSON."""

READ_ONLY = ("hf", "http", "https", "ftp")
"""Protocols unsuitable for a run: every file would be a commit, or they cannot write."""


def open_storage(root: Root, contents: Contents) -> Storage:
    """Open the storage of a run, which need not exist yet, for files with these *contents*.

    Raises:
        RunError: a run cannot be at this path or URL.
    """
    text = str(root).removeprefix("file://")
    if not text.strip():
        raise RunError(f"{text!r}: the folder of a run has a name; `.` is the current folder")
    if not is_utf8(os.path.abspath(text)):
        raise RunError(f"{text}: {NOT_UTF8}")
    if "://" not in text:
        if any(character in os.path.abspath(text) for character in "*?[\\,"):
            raise RunError(
                f"{text}: DuckDB would read *, ? or [ as a pattern, \\ as / and a comma as the end "
                "of the name; use another folder"
            )
        if ":/" in text and text.partition(":/")[0].isalnum():
            raise RunError(f"{text}: a URL has two slashes after its colon")
        # PyArrow takes what precedes the colon of a relative path for the scheme of a URL.
        path = Path(text).absolute() if ":" in text else Path(text)
        return Storage(path, contents)
    url = text.rstrip("/")
    protocol, _, rest = url.partition("://")
    if without_secrets(url) != url:
        raise RunError(
            f"{url}: a user, password, token or signature would be recorded; give it in the "
            "environment (AWS_ACCESS_KEY_ID, ...)"
        )
    if protocol in READ_ONLY:
        raise RunError(f"{url}: a run needs an object store, such as s3:// or gs://, or a folder")
    names = rest.split("/")
    is_odd = any(c in url for c in "*?[]#\\\0\n") or "," in names[-1]
    if not all(names) or {".", ".."} & {*names} or is_odd:
        raise RunError(f"{url}: not a bucket and a prefix of plain names")
    return RemoteStorage(url, contents)
