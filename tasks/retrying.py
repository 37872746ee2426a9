"""Decide when a task is retried; the options of every task.

The library decides which failures are worth a retry and how long the pauses are. Prefect caches
nothing: the run folder alone says what is done.
"""

from __future__ import annotations

from typing import Any

import httpx
from prefect.cache_policies import NO_CACHE
from prefect.exceptions import PrefectHTTPStatusError

from datamask import errors
from datamask.runs.retrying import JITTER, PAUSES


def error_of(state: Any) -> BaseException:
    """Return the error of a failed task; a lost process leaves none of its own."""
    try:
        error = state.result(raise_on_failure=False)
    except Exception as missing:
        return missing
    return error if isinstance(error, BaseException) else errors.TerminalError(f"{state.message}")


def may_heal(task: Any, task_run: Any, state: Any) -> bool:
    """Return True if the failure may heal. A plain function: Prefect ignores other callables."""
    return errors.may_heal(error_of(state))


def server_is_away(task: Any, task_run: Any, state: Any) -> bool:
    """Return True if the task failed because Prefect's server was away. Plain function, too."""
    error = error_of(state)
    if isinstance(error, PrefectHTTPStatusError):
        return error.response.status_code >= 500
    return isinstance(error, httpx.TransportError)


RULES: dict[str, Any] = {
    "retries": len(PAUSES),
    "retry_delay_seconds": PAUSES,
    "retry_jitter_factor": JITTER,
    "retry_condition_fn": may_heal,
    "cache_policy": NO_CACHE,
    "persist_result": False,
}
"""Options of every task."""
