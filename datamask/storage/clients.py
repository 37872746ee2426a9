"""Make the clients of object stores: how long they wait, and what their errors mean.

Without time-outs of its own, a client waits for minutes for a server that accepts a connection and
never answers. Here a request ends after `CONNECT_SECONDS` or `READ_SECONDS` of silence, and is
tried `TRIES` times twice: by the client of the protocol and by fsspec's file system over it. So a
silent server is given up after about a minute. Work is attempted again by `runs.retrying`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs"}
"""The extra of the distribution that installs a protocol's client."""

CONNECT_SECONDS = 5.0
READ_SECONDS = 15.0
"""Maximum seconds of silence in the middle of an answer, and before it."""
TRIES = 2

CREDENTIALS = "check the credentials in the environment, their permissions, and the clock"
"""Remedy if a store refuses a request. A store refuses one whose time differs by minutes."""

_REFUSED = (
    *("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"),
    *("ProfileNotFound", "NoAuthTokenError", "TokenRetrievalError", "UnauthorizedSSOTokenError"),
    *("SSOTokenLoadError", "DefaultCredentialsError", "RefreshError", "ClientAuthenticationError"),
)
"""Errors of clients that have no credentials to send."""
_TRANSIENT_STATUS = (404, 408, 409, 412, 425, 429)
"""Answers of a store below 500 that say nothing about credentials."""
_TRANSIENT_CODES = ("RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch")
_CLIENTS = ("botocore", "aiobotocore", "aiohttp", "gcsfs", "google", "azure", "urllib3", "requests")


def file_system(url: str, **options: Any) -> tuple[Any, str]:
    """Return the fsspec file system of a path or URL, with time-outs, and the path within it.

    *options* go to the file system.
    """
    import fsspec

    kind = EXTRAS.get(url.partition("://")[0])
    if kind == "s3":
        options["config_kwargs"] = {
            "connect_timeout": CONNECT_SECONDS,
            "read_timeout": READ_SECONDS,
            "retries": {"total_max_attempts": TRIES},
        }
    elif kind == "gs":
        with contextlib.suppress(ImportError):  # The message of fsspec names the missing package.
            from aiohttp import ClientTimeout

            timeout = ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS)
            options["session_kwargs"] = {"timeout": timeout}
    filesystem, path = fsspec.core.url_to_fs(url, **options)
    if kind == "s3":
        filesystem.retries = TRIES
    return filesystem, path


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__


def code_of(error: BaseException) -> str:
    """Return the store's code of an error, or the class name of the error's first cause."""
    first = error
    for first in chain(error):
        response = getattr(first, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
    return type(first).__name__


def _status_of(error: BaseException) -> int:
    """Return the HTTP status of the answer that caused an error; 0 if there is none."""
    for cause in chain(error):
        response = getattr(cause, "response", None)
        if isinstance(response, dict):
            return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        for name in ("status_code", "status", "code"):
            status = getattr(cause, name, None)
            if isinstance(status, int):
                return status
    return 0


def is_refused(error: BaseException) -> bool:
    """Return True if the store refuses a request, which the same credentials do not change.

    The answer to a HEAD request has no body and so no code: there the status is all that is known.
    For an expired token, Amazon answers 400.
    """
    code, status = code_of(error), _status_of(error)
    if code in _REFUSED or isinstance(error, PermissionError):
        return True
    if code in _TRANSIENT_CODES or "rate limit" in str(error).lower():
        return False
    return 400 <= status < 500 and status not in _TRANSIENT_STATUS


def is_of_client(error: BaseException) -> bool:
    """Return True if a store's client raised the error, or a cause of it."""
    kinds = (kind for cause in chain(error) for kind in type(cause).__mro__)
    return any(kind.__module__.partition(".")[0] in _CLIENTS for kind in kinds)


def hub_is_unavailable(error: Exception) -> bool:
    """Return True if the Hub did not answer or asks to retry later."""
    from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # httpx2 since 2.0

    status = http_status(error)
    return isinstance(error, httpx.TransportError) or status == 429 or status >= 500


def http_status(error: Exception) -> int:
    """The HTTP status that caused an error; 0 if none did."""
    return getattr(getattr(error, "response", None), "status_code", None) or 0
