"""When a task is tried again, and what every task shares.

Only failures that may heal by themselves are retried: a full disk that is being emptied, a Hub
that answers 503. A bad document fails at once, because it will be bad next time too. Nothing is
cached by Prefect: the run folder alone says what is done.
"""

from __future__ import annotations

from typing import Any

from prefect.cache_policies import NO_CACHE
from prefect.tasks import exponential_backoff

from datamask.errors import is_transient
from datamask.execution.shard_batches import BatchError


def may_heal(task: Any, task_run: Any, state: Any) -> bool:
    """Whether the failure is transient. A plain function: Prefect ignores other callables."""
    error = state.result(raise_on_failure=False)
    if isinstance(error, BatchError):
        error = error.__cause__
    return is_transient(error if isinstance(error, BaseException) else None)


RULES: dict[str, Any] = {
    "retries": 3,
    "retry_delay_seconds": exponential_backoff(10),
    "retry_jitter_factor": 0.5,
    "retry_condition_fn": may_heal,
    "cache_policy": NO_CACHE,
    "persist_result": False,
}
"""Options of every task."""
