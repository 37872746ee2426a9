"""Where files are and how they are opened: folders, patterns, URLs, the Hub's commits."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from datamask.config.inputs import Source
from datamask.errors import (
    NOT_UTF8,
    DatamaskError,
    HubUnavailableError,
    InputError,
    StorageError,
    describe,
    is_transient,
    is_utf8,
    one_line,
    together,
)
from datamask.storage.clients import CREDENTIALS, file_system, is_of_client, is_refused

SOURCE_PIN = "scores:source"
"""The key of the commit a Hub source is read at, among a run's pinned revisions."""

FETCH_BYTES = 64 * 2**20
"""Compressed bytes of a remote file held at a time, if one row group is not larger."""


def is_remote(path: str) -> bool:
    """Whether a path is a URL that fsspec has to open."""
    return "://" in path and not path.startswith("file://")


def resolve_path(path: str) -> str:
    """A local path or glob made absolute; URLs as they are."""
    if not path or is_remote(path):
        return path
    return str(Path(path.removeprefix("file://")).expanduser().absolute())


@contextlib.contextmanager
def naming(path: str, shard: int | None = None) -> Iterator[None]:
    """Turn errors from reading *path* into one line that names it."""
    try:
        yield
        return
    except DatamaskError:
        raise
    except FileNotFoundError:
        problem = "no such file; restore it"
    except UnicodeEncodeError:
        problem = NOT_UTF8
    except Exception as error:
        reason, is_on_hub = one_line(error) or type(error).__name__, path.startswith("hf://")
        problem = f"cannot be read ({reason}); replace it with a whole file"
        if is_on_hub and hub_is_unavailable(error):
            raise HubUnavailableError(f"{path}: {reason}; try again later") from None
        if is_on_hub and http_status(error) in (401, 403, 404):
            problem = f"cannot be read ({reason}); check the address, and that HF_TOKEN may read it"
        elif isinstance(error, PermissionError) and not is_remote(path):
            problem = "no permission to read it; change its mode"
        elif is_remote(path) and not is_on_hub and is_refused(error):
            problem = f"refused ({reason}); {CREDENTIALS}"
        elif is_transient(error) or (not is_on_hub and is_of_client(error)):
            raise StorageError(f"file {path}: {reason}; try again") from error
        elif not isinstance(error, pa.ArrowException | OSError | UnicodeDecodeError):
            raise
    raise InputError(problem, path=path, shard=shard)


def hub_is_unavailable(error: Exception) -> bool:
    """Whether the Hub did not answer or asks to retry later."""
    from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # httpx2 since 2.0

    status = http_status(error)
    return isinstance(error, httpx.TransportError) or status == 429 or status >= 500


def http_status(error: Exception) -> int:
    """The HTTP status that caused an error; 0 if none did."""
    return getattr(getattr(error, "response", None), "status_code", None) or 0


@contextlib.contextmanager
def opening(path: str) -> Iterator[None]:
    """Turn errors about an invalid or inaccessible path or URL into one line that names it."""
    try:
        with naming(path):
            yield
        return
    except DatamaskError:
        raise
    except ImportError as error:
        problem = f"needs a package that is not installed ({one_line(error)})"
    except ValueError as error:
        problem = f"not a path or URL ({one_line(error)}); check it"
    except Exception as error:
        # Every object store's client has errors of its own, most often about credentials.
        if not is_remote(path):
            raise
        problem = f"cannot be listed ({describe(error)}); check the address, and the credentials "
        problem += "in the environment"
    raise InputError(problem, path=path)


def list_files(path: str, suffixes: tuple[str, ...] = (".parquet",)) -> tuple[str, ...]:
    """The files of a folder (recursive), glob, single file or fsspec URL, sorted by path.

    Those of a folder or glob end with one of *suffixes* (lower case; `""` is the end of any name).
    There must be some.
    """
    with opening(path):
        filesystem, urlpath = file_system(resolve_path(path))
        if filesystem.isfile(urlpath):
            names = [urlpath]
        else:
            # The name of an existing folder may hold such characters too.
            is_glob = any(character in urlpath for character in "*?[") and not filesystem.isdir(
                urlpath
            )
            listed = filesystem.glob(urlpath) if is_glob else filesystem.find(urlpath)
            names = [name for name in listed if name.lower().endswith(suffixes)]
            names = [name for name in names if not name.rpartition("/")[2].startswith(".")]
    odd = [InputError(NOT_UTF8, path=n) for n in names if not is_utf8(n)]
    if odd:
        raise together(odd)
    if not names:
        kinds = "".join(f"{kind} " for kind in [", ".join(suffixes)] if kind)
        problem = f"no {kinds}files found; check the path, and the right to read it"
        raise InputError(problem, path=path)
    if not is_remote(path):
        if any(suffixes):
            check_regular(names)
        return tuple(sorted(names))
    return tuple(sorted(filesystem.unstrip_protocol(name) for name in names))


def check_regular(names: Iterable[str]) -> None:
    """Raise InputError for local names of what is no regular file: reading a pipe never ends."""
    problem = "a pipe, socket, device or dead link in the place of a file; move it away"
    local = (name for name in names if not is_remote(name))
    if odd := [InputError(problem, path=name) for name in local if not os.path.isfile(name)]:
        raise together(odd)


def open_binary(path: str, shard: int | None = None, **options: str) -> IO[bytes]:
    """Open a local or remote file for reading, with options of its fsspec file system."""
    with naming(path, shard):
        if not is_remote(path):
            return open(path if path.startswith("/") else resolve_path(path), "rb")
        filesystem, urlpath = file_system(path)
        file: IO[bytes] = filesystem.open(urlpath, "rb", **options)
        return file


def pin_source(source: Source) -> dict[str, str]:
    """The current commit of a Hub source, by the key `scores:source`; empty for other sources."""
    if not source.path.startswith("hf://"):
        return {}
    from huggingface_hub import HfApi, HfFileSystem

    with opening(source.path):
        at: Any = HfFileSystem().resolve_path(source.path)
        facts = HfApi().repo_info(at.repo_id, repo_type=at.repo_type, revision=at.revision)
    return {SOURCE_PIN: str(facts.sha)}


def pinned_path(path: str, pinned_revisions: dict[str, str]) -> str:
    """A Hub path at its pinned commit; other paths as they are."""
    commit = pinned_revisions.get(SOURCE_PIN)
    if commit is None or not path.startswith("hf://"):
        return path
    from huggingface_hub import HfFileSystem

    at: Any = HfFileSystem().resolve_path(path)
    kind = "" if at.repo_type == "model" else f"{at.repo_type}s/"
    tail = f"/{at.path_in_repo}" if at.path_in_repo else ""
    return f"hf://{kind}{at.repo_id}@{commit}{tail}"
