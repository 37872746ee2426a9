"""Show the progress of a stage: an artifact of its flow run, and lines in the first flow run's log.

`prefect deployment run --watch` shows only the log of the flow run that it started, and stages are
flow runs of their own. So work in this process is logged there too.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.context import FlowRunContext

from datamask.execution.progress import Stages, lines
from datamask.runs.run import Run
from flows.orchestration.artifacts import titled
from tasks.forwarding import warnings_forwarded

logger = logging.getLogger("datamask.watched")

SECONDS_BETWEEN_LINES = 10.0

_stages: ContextVar[Stages | None] = ContextVar("stages", default=None)


class Progress:
    """A progress artifact, `RUN-NAME-progress`.

    The server receives whole percents, at most one each SECONDS_BETWEEN_LINES and the last.
    """

    def __init__(self, run: Run, name: str, total: int) -> None:
        self.name, self.total, self.shown = name, total, 0
        title = titled(run, f"{name}-progress", f": {name}")
        self.artifact: Any = create_progress_artifact(0.0, **title)
        self.sent = time.monotonic()
        self.show(0)

    def show(self, done: int, is_last: bool = False) -> None:
        """Show that this many units are done; the artifact at once if *is_last*."""
        if stages := _stages.get():
            stages.advance(self.name, done, self.total)
        percent = 100 * done // self.total
        is_due = is_last or time.monotonic() - self.sent >= SECONDS_BETWEEN_LINES
        if percent > self.shown and is_due:
            self.shown, self.sent = percent, time.monotonic()
            update_progress_artifact(self.artifact, 100.0 * done / self.total)


def first_log() -> Callable[[str], None]:
    """Return a function that logs a line to the first flow run, from any thread of this process."""
    return stages.log if (stages := _stages.get()) else logger.info


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Log work to the flow run that this process started with, while the block runs."""
    context = FlowRunContext.get()
    if _stages.get() is not None or context is None or context.flow_run is None:
        yield
        return
    # Threads of tasks and child flow runs have other contexts, or none.
    of_first = {"flow_run_id": str(context.flow_run.id), "task_run_id": None}

    def log(line: str) -> None:
        logger.info("%s", line, extra=of_first)

    stages = Stages(log)
    token = _stages.set(stages)
    try:
        with warnings_forwarded(), lines(stages, SECONDS_BETWEEN_LINES, log):
            yield
    finally:
        _stages.reset(token)
