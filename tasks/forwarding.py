"""Copy warnings of tasks and child flow runs to the log of the flow run that an operator watches.

`prefect deployment run --watch` shows only the log of the flow run that it started, but stages and
parts of stages are flow runs of their own, perhaps of other processes and machines.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext, TaskRunContext
from prefect.exceptions import PrefectException
from prefect.logging.handlers import APILogHandler

_active: list[_ToFirst] = []


class _ToFirst(APILogHandler):
    """Sends each warning that is in another log to the log of one flow run."""

    def __init__(self, flow_run_id: UUID) -> None:
        super().__init__(logging.WARNING)
        self.flow_run_id = flow_run_id

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`; errors end a flow run, whose last line has them."""
        context = FlowRunContext.get()
        is_here = context and context.flow_run and context.flow_run.id == self.flow_run_id
        if record.levelno != logging.WARNING or hasattr(record, "flow_run_id"):
            return
        if TaskRunContext.get() or not is_here:
            place: dict[str, Any] = {"flow_run_id": str(self.flow_run_id), "task_run_id": None}
            super().emit(logging.makeLogRecord({**vars(record), **place}))


@contextlib.contextmanager
def warnings_forwarded() -> Iterator[None]:
    """Send warnings of this process to the first flow run too, while the block runs."""
    if _active or not (nearest := _nearest()):
        yield
        return
    _active.append(_ToFirst(first_flow_run(nearest)))
    logging.getLogger("datamask").addHandler(_active[0])
    try:
        yield
    finally:
        logging.getLogger("datamask").removeHandler(_active.pop())


def _nearest() -> UUID | None:
    """Return the flow run of the calling code."""
    flow, task = FlowRunContext.get(), TaskRunContext.get()
    if flow and flow.flow_run:
        return flow.flow_run.id
    return task.task_run.flow_run_id if task else None


def first_flow_run(flow_run_id: UUID) -> UUID:
    """Return the first flow run of the chain that started this one."""
    with (
        contextlib.suppress(PrefectException, httpx.HTTPError),
        get_client(sync_client=True) as client,
    ):
        while parent := client.read_flow_run(flow_run_id).parent_task_run_id:
            flow_run_id = client.read_task_run(parent).flow_run_id or flow_run_id
    return flow_run_id
