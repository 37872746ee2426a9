"""Calling the Hub: which faults heal by waiting, which stop at once, and what to tell the user.

The client retries some requests (pre-upload, LFS) and not others (commit, tags, refs); here every
call gets the same bounded patience. No message carries the token.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from datamask.errors import HubUnavailableError, PublicationError

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

LONGEST_WAIT_SECONDS = 330.0
"""The Hub's rate limits reset every five minutes, so a longer wait is never asked for."""

SILENCE_SECONDS = 120.0
"""A connection on which nothing comes or goes for so long is dropped. The client itself would wait
for ever; the Hub ends requests after 60 seconds."""

CONNECT_SECONDS = 10.0

CONFLICT = 412
"""The branch moved since its head was read."""

_TRANSIENT_STATUS = frozenset((408, 425, 429, 500, 502, 503, 504))


@dataclass(frozen=True, slots=True)
class Patience:
    """How often and how long to wait for the Hub.

    Args:
        attempts: tries of one action, the first included, at least 1.
        base_seconds: wait after the first failure; doubled each time, with jitter, at most 60
            unless the Hub asks for longer.
        sleep: waits that many seconds.
    """

    attempts: int = 7
    base_seconds: float = 1.0
    sleep: Callable[[float], None] = time.sleep

    def call(self, action: str, function: Callable[[], Answer], token: str) -> Answer:
        """Do *function*, again after transient faults.

        Raises:
            HubUnavailableError: the faults outlasted the attempts.
            PublicationError: the Hub refuses, with what to do.
        """
        for attempt in range(1, self.attempts + 1):
            try:
                bound_silence()
                return function()
            except Exception as error:
                self.wait(action, error, attempt, token)
        raise AssertionError("unreachable: wait raises after the last attempt")

    def wait(
        self, action: str, error: Exception, attempt: int, token: str, *, conflict: bool = False
    ) -> None:
        """Sleep if *error* is transient and attempts are left; otherwise raise what it means.

        Args:
            action: what was tried, for the message.
            error: what came of it.
            attempt: the number of the attempt that failed, from 1.
            token: removed from every message.
            conflict: whether a moved branch (412) may be tried again.
        """
        cause = _root(error)
        status, told = _status(cause), _one_line(cause, token)
        transient = status in _TRANSIENT_STATUS or (conflict and status == CONFLICT)
        if not transient and not _is_network(cause):
            raise _refusal(action, status, told, cause) from None
        if attempt >= self.attempts:
            raise HubUnavailableError(
                f"{action}: still failing after {attempt} attempts ({told}); publish again later: "
                "what was sent is not sent twice"
            ) from None
        backoff = min(60.0, self.base_seconds * 2.0 ** (attempt - 1)) * random.uniform(0.75, 1.25)
        seconds = min(LONGEST_WAIT_SECONDS, max(backoff, _asked_seconds(cause)))
        logger.warning("%s: %s; trying again in %.1f s", action, told, seconds)
        self.sleep(seconds)


def bound_silence() -> None:
    """Give requests without a time-out one. The client is shared, and made anew after faults."""
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    hooks = get_session().event_hooks["request"]
    if _with_timeout not in hooks:
        hooks.append(_with_timeout)


def _with_timeout(request: Any) -> None:
    given = request.extensions.get("timeout") or {}
    bounds = dict.fromkeys(("read", "write", "pool"), SILENCE_SECONDS)
    bounds["connect"] = CONNECT_SECONDS
    set_ones = {kind: seconds for kind, seconds in given.items() if seconds is not None}
    request.extensions = {**request.extensions, "timeout": {**bounds, **set_ones}}


def _root(error: Exception) -> Exception:
    # The client wraps what happened: LFS uploads and downloads, each in its own class.
    from huggingface_hub.errors import LocalEntryNotFoundError

    wrapped = isinstance(error, RuntimeError | LocalEntryNotFoundError)
    if wrapped and isinstance(error.__cause__, Exception):
        return _root(error.__cause__)
    return error


def _status(error: Exception) -> int | None:
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    return status if isinstance(status, int) else None


def _is_network(error: Exception) -> bool:
    from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # httpx2 since 2.0

    # hf_xet tells every fault of its transfers as a RuntimeError.
    kinds = httpx.TransportError | ConnectionError | TimeoutError | RuntimeError
    return isinstance(error, kinds)


def _asked_seconds(error: Exception) -> float:
    """How long the answer's headers ask to wait; 0 if they do not."""
    from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined]

    headers = getattr(getattr(error, "response", None), "headers", None)
    if headers is None:
        return 0.0
    asked = str(headers.get("Retry-After", ""))
    if asked.isdigit():
        return float(asked)
    limit = parse_ratelimit_headers(headers)
    return float(limit.reset_in_seconds) if limit is not None and limit.remaining == 0 else 0.0


def _one_line(error: Exception, token: str) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text.replace(token, "***") if token else text


def _refusal(action: str, status: int | None, told: str, error: Exception) -> Exception:
    if status is None and not isinstance(error, ValueError):
        # Not an answer of the Hub: a local fault or a mistake in this program, shown as it is.
        return error
    remedies = {
        400: "fix what the Hub names",
        401: "set HF_TOKEN to a valid token with write access to publication.repository",
        402: "the Hub asks for a paid plan; change the plan or publish under another owner",
        403: "give the token of HF_TOKEN write access to publication.repository",
        404: "check publication.repository and that the token of HF_TOKEN may see it",
        CONFLICT: "somebody else changes this repository; publish again when they are done",
        413: "lower subset.file_bytes",
    }
    remedy = remedies.get(status or 400, "fix what the Hub names, then publish again")
    if status in (402, 403, 413) and "storage" in told.lower():
        remedy = "free storage, change the owner's plan, or publish under another owner"
    return PublicationError(f"{action}: {told}; {remedy}")
