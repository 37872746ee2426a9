"""When a task is retried, and the options of every task.

Only transient failures are retried, such as a full disk or a Hub that answers 503. A bad document
fails at once. Prefect caches nothing: the run folder alone says what is done.
"""

from __future__ import annotations

from typing import Any

import httpx
from prefect.cache_policies import NO_CACHE
from prefect.exceptions import PrefectHTTPStatusError
from prefect.tasks import exponential_backoff

from datamask.errors import TerminalError, is_transient
from datamask.execution.attempts import ShardsFailedError


def error_of(state: Any) -> BaseException:
    """The error of a failed task; a lost process leaves none of its own."""
    try:
        error = state.result(raise_on_failure=False)
    except Exception as missing:
        return missing
    return error if isinstance(error, BaseException) else TerminalError(f"{state.message}")


def may_heal(task: Any, task_run: Any, state: Any) -> bool:
    """Whether the failure is transient. A plain function: Prefect ignores other callables."""
    error: BaseException | None = error_of(state)
    if isinstance(error, ShardsFailedError):
        error = error.__cause__
    return is_transient(error)


def server_is_away(task: Any, task_run: Any, state: Any) -> bool:
    """Whether the task failed because Prefect's server did not answer. A plain function, too."""
    error = error_of(state)
    if isinstance(error, PrefectHTTPStatusError):
        return error.response.status_code >= 500
    return isinstance(error, httpx.TransportError)


RULES: dict[str, Any] = {
    "retries": 3,
    "retry_delay_seconds": exponential_backoff(10),
    "retry_jitter_factor": 0.5,
    "retry_condition_fn": may_heal,
    "cache_policy": NO_CACHE,
    "persist_result": False,
}
"""Options of every task."""
