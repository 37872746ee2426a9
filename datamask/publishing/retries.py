"""Call the Hub: retry some faults, fail at once on others, and write the message for the user.

The client retries transfers, but not commits, tags and listings; here all calls have the same
bounded retries. No message contains the token.
"""

from __future__ import annotations

import functools
import logging
import random
from collections.abc import Callable
from typing import Any, TypeVar

from datamask.errors import HubUnavailableError, PublicationError, one_line
from datamask.showing import printable
from datamask.storage.clients import http_status
from datamask.storage.stopping import pause

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

ATTEMPTS = 7
"""Maximum attempts of a call."""

LONGEST_WAIT_SECONDS = 330.0
"""Longest wait between attempts; the Hub's rate limits reset every five minutes."""

SILENCE_SECONDS = 120.0
"""Timeout of an idle connection, in seconds. The client has none; the Hub ends requests after
60."""

CONNECT_SECONDS = 10.0

CONFLICT = 412
"""Status if a branch moved since its head was read: the next attempt reads the head again."""

_TRANSIENT_STATUS = frozenset((408, CONFLICT, 425, 429, 500, 502, 503, 504))


def call_hub(action: str, function: Callable[[], Answer], attempts: int | None = None) -> Answer:
    """Call *function*, and repeat after transient faults; at most `ATTEMPTS` or *attempts* times.

    It waits about 1 second after the first failure, then twice as long each time, up to 60 unless
    the Hub requests more.

    Raises:
        HubUnavailableError: the faults persisted through all attempts.
        PublicationError: the Hub refuses; the message has the remedy.
    """
    most = attempts or ATTEMPTS
    for attempt in range(1, most + 1):
        try:
            bound_silence()
            return function()
        except Exception as error:
            cause = _root(error)
            problem = printable(one_line(cause) or type(cause).__name__)
            if not _is_transient(cause):
                raise _refusal(action, problem, cause) from None
        if attempt < most:
            backoff = min(60.0, 2.0 ** (attempt - 1)) * random.uniform(0.75, 1.25)
            seconds = min(LONGEST_WAIT_SECONDS, max(backoff, _asked_seconds(cause)))
            logger.warning("%s: %s; trying again in %.1f s", action, problem, seconds)
            pause(seconds)
    raise HubUnavailableError(
        f"{action}: still failing after {most} attempts ({problem}); publish again later; files "
        "already sent are not sent again"
    )


@functools.cache
def bound_silence() -> None:
    """Set a timeout for requests without one, for every session: a fault makes a new one."""
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils import get_session, httpx  # type: ignore[attr-defined]

    hooks = get_session().event_hooks
    hooks = {**hooks, "request": [*hooks["request"], _with_timeout]}
    # `_with_timeout` leaves timeouts that a request has, so the client has none.
    options: dict[str, Any] = {"follow_redirects": True, "timeout": None}
    set_client_factory(lambda: httpx.Client(event_hooks=hooks, **options))


def _with_timeout(request: Any) -> None:
    given = request.extensions.get("timeout") or {}
    silence = dict.fromkeys(("read", "write", "pool"), SILENCE_SECONDS)
    bounds = {"connect": CONNECT_SECONDS, **silence}
    bounds |= {kind: seconds for kind, seconds in given.items() if seconds is not None}
    request.extensions = {**request.extensions, "timeout": bounds}


def _root(error: Exception) -> Exception:
    # The client wraps what happened: LFS uploads and downloads, each in its own class.
    from huggingface_hub.errors import LocalEntryNotFoundError

    wrapped = isinstance(error, RuntimeError | LocalEntryNotFoundError)
    if wrapped and isinstance(error.__cause__, Exception):
        return _root(error.__cause__)
    return error


def _is_transient(error: Exception) -> bool:
    from huggingface_hub.errors import RevisionNotFoundError
    from huggingface_hub.utils import httpx  # type: ignore[attr-defined]

    # Another publication may delete the staging branch; the next attempt makes the branch again.
    if http_status(error) in _TRANSIENT_STATUS or isinstance(error, RevisionNotFoundError):
        return True
    # After a failed connection the client closes the session of all threads, and others get None.
    if isinstance(error, AttributeError) and error.obj is None:
        return True
    # hf_xet raises RuntimeError for every fault of a transfer.
    return isinstance(error, httpx.TransportError | ConnectionError | TimeoutError | RuntimeError)


def _asked_seconds(error: Exception) -> float:
    """Return seconds to wait according to the response headers; 0 if they contain none."""
    from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined]

    headers = getattr(getattr(error, "response", None), "headers", None)
    if headers is None:
        return 0.0
    asked = str(headers.get("Retry-After", ""))
    if asked.isdigit():
        return float(asked)
    limit = parse_ratelimit_headers(headers)
    return float(limit.reset_in_seconds) if limit is not None and limit.remaining == 0 else 0.0


def _refusal(action: str, problem: str, error: Exception) -> Exception:
    status = http_status(error)
    if not status and not isinstance(error, ValueError):
        # This is not a response of the Hub but a local fault or a bug.
        return error
    remedies = {
        401: "set HF_TOKEN to a valid token with write access to publication.repository",
        402: "the Hub requires a paid plan; change the plan or publish under another owner",
        403: "give the token of HF_TOKEN write access to publication.repository",
        404: "check publication.repository and that the token of HF_TOKEN can read it",
        413: "lower subset.file_bytes",
    }
    remedy = remedies.get(status, "fix the problem that the Hub reports, then publish again")
    if status in (402, 403, 413) and "storage" in problem.lower():
        remedy = "free storage, change the owner's plan, or publish under another owner"
    return PublicationError(f"{action}: {problem}; {remedy}")
