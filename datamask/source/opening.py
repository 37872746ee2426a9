"""Where files are and how they are opened: folders, patterns, URLs, the Hub's commits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from datamask.config.inputs import Source
from datamask.errors import (
    NOT_UTF8,
    DatamaskError,
    HubUnavailableError,
    InputError,
    StorageError,
    is_transient,
    is_utf8,
    together,
)

SOURCE_PIN = "scores:source"
"""The key of the commit a Hub source is read at, among a run's pinned revisions."""

FETCH_BYTES = 64 * 2**20
"""Compressed bytes of a remote file held at a time, if one row group is not larger."""

SIGNATURE_BYTES = 28
"""Nonce and tag that follow a plain footer where columns are encrypted (Parquet Modular Encryption,
section 5.5)."""

PARQUET = (".parquet",)


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
    """Turn what reading *path* may raise into one line that names it."""
    try:
        yield
    except FileNotFoundError:
        raise InputError("no such file; restore it", path=path, shard=shard) from None
    except DatamaskError:
        raise
    except UnicodeEncodeError:
        raise InputError(NOT_UTF8, path=path, shard=shard) from None
    except PermissionError:
        raise InputError("no right to read it; change its mode", path=path, shard=shard) from None
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if path.startswith("hf://") and _hub_is_unavailable(error):
            raise HubUnavailableError(f"{path}: {reason}; try again later") from None
        if path.startswith("hf://") and _status(error) in (401, 403, 404):
            raise InputError(
                f"cannot be read ({reason}); check the address, and that HF_TOKEN may read it",
                path=path,
                shard=shard,
            ) from None
        if is_transient(error):
            raise StorageError(f"file {path}: {reason}; try again") from error
        if not isinstance(error, pa.ArrowException | OSError | UnicodeDecodeError):
            raise
        raise InputError(
            f"cannot be read ({reason}); replace it with a whole file", path=path, shard=shard
        ) from None


def _hub_is_unavailable(error: Exception) -> bool:
    """Whether the Hub did not answer, or asks to come back later."""
    from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # httpx2 since 2.0

    status = _status(error)
    return isinstance(error, httpx.TransportError) or status == 429 or status >= 500


def _status(error: Exception) -> int:
    """The status of the HTTP answer that an error came from; 0 if it came from none."""
    return getattr(getattr(error, "response", None), "status_code", None) or 0


@contextlib.contextmanager
def opening(path: str) -> Iterator[None]:
    """Turn what a path or URL that cannot be understood provokes into one line that names it."""
    try:
        with naming(path):
            yield
    except ImportError as error:
        reason = " ".join(str(error).split())
        raise InputError(f"needs a package that is not here ({reason})", path=path) from None
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise InputError(f"not a path or URL ({reason}); check it", path=path) from None
    except DatamaskError:
        raise
    except Exception as error:
        # Every object store's client has errors of its own, most often about credentials.
        if not is_remote(path):
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            f"cannot be listed ({reason}); check the address, and the credentials in the "
            "environment",
            path=path,
        ) from None


def list_files(path: str, suffixes: tuple[str, ...] = PARQUET) -> tuple[str, ...]:
    """The files of a folder (recursive), glob, single file or fsspec URL, sorted by path.

    Args:
        path: as in the settings.
        suffixes: file names that count in a folder, in lower case.

    Raises:
        InputError: nothing is there.
    """
    import fsspec

    with opening(path):
        filesystem, place = fsspec.core.url_to_fs(resolve_path(path))
        if filesystem.isfile(place):
            names = [place]
        else:
            # The name of a folder that is there may hold such characters too.
            is_glob = any(character in place for character in "*?[") and not filesystem.isdir(place)
            names = filesystem.glob(place) if is_glob else filesystem.find(place)
            names = [name for name in names if name.lower().endswith(suffixes)]
            names = [name for name in names if not name.rpartition("/")[2].startswith(".")]
    odd = [InputError(NOT_UTF8, path=n) for n in names if not is_utf8(n)]
    if odd:
        raise together(odd)
    if not names:
        raise InputError(
            f"no {', '.join(suffixes)} files found; check the path, and the right to read it",
            path=path,
        )
    if not is_remote(path):
        return tuple(sorted(names))
    return tuple(sorted(filesystem.unstrip_protocol(name) for name in names))


def open_binary(path: str, shard: int | None = None, **options: str) -> IO[bytes]:
    """Open a local or remote file for reading.

    Args:
        path: of the file.
        shard: for messages.
        **options: of the file system.

    Raises:
        InputError: it is not there.
    """
    import fsspec

    with naming(path, shard):
        filesystem, place = fsspec.core.url_to_fs(path)
        file: IO[bytes] = filesystem.open(place, "rb", **options)
        return file


@contextlib.contextmanager
def open_parquet(path: str, shard: int | None = None) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file; what goes wrong inside the block names it too.

    Of a remote file, only what is asked for is fetched, in few large requests, and nothing is kept
    on disk.

    Raises:
        InputError: missing, truncated, encrypted, or not a Parquet file.
    """
    with naming(path, shard), contextlib.ExitStack() as stack:
        # fsspec reads ahead, past the columns that are wanted; Arrow joins neighbours itself.
        exact = {"cache_type": "none"} if path.startswith(("hf://", "s3://")) else {}
        place = stack.enter_context(open_binary(path, shard, **exact))
        length = footer_length(place, path, shard)
        # Arrow reads local files itself, which is faster than through a Python file.
        whole = pq.ParquetFile(place, pre_buffer=True) if is_remote(path) else pq.ParquetFile(path)
        file = stack.enter_context(whole)
        if length - file.metadata.serialized_size == SIGNATURE_BYTES:
            # PyArrow ends the whole process when it is asked about an encrypted column.
            problem = "has encrypted columns; decrypt it"
            raise InputError(problem, path=path, shard=shard)
        yield file


def footer_length(file: IO[bytes], path: str, shard: int | None = None) -> int:
    """Bytes of a Parquet file's footer, without the eight that end the file.

    Raises:
        InputError: the footer is encrypted, the file truncated, or not a Parquet file.
    """
    size = file.seek(0, 2)
    file.seek(max(0, size - 8))
    tail = file.read(8)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] == b"PARE":
        raise InputError("its footer is encrypted; decrypt it", path=path, shard=shard)
    if tail[4:] != b"PAR1" or length + 12 > size:
        problem = "truncated, or not a Parquet file; replace it"
        raise InputError(problem, path=path, shard=shard)
    return length


def pin_source(source: Source) -> dict[str, str]:
    """Look up the commit that a Hub source stands at; nothing for other sources.

    Returns:
        `scores:source` and the commit, for `create_run`; see `pinned_path`.

    Raises:
        InputError: there is no such data set, or no right to read it.
        HubUnavailableError: the Hub does not answer.
    """
    if not source.path.startswith("hf://"):
        return {}
    from huggingface_hub import HfApi, HfFileSystem

    with opening(source.path):
        place: Any = HfFileSystem().resolve_path(source.path)
        found = HfApi().repo_info(place.repo_id, repo_type=place.repo_type, revision=place.revision)
    return {SOURCE_PIN: str(found.sha)}


def pinned_path(path: str, pinned_revisions: dict[str, str]) -> str:
    """A Hub path at its pinned commit; other paths as they are."""
    commit = pinned_revisions.get(SOURCE_PIN)
    if commit is None or not path.startswith("hf://"):
        return path
    from huggingface_hub import HfFileSystem

    place: Any = HfFileSystem().resolve_path(path)
    kind = "" if place.repo_type == "model" else f"{place.repo_type}s/"
    tail = f"/{place.path_in_repo}" if place.path_in_repo else ""
    return f"hf://{kind}{place.repo_id}@{commit}{tail}"
