"""The locks of a run. The run's storage releases a lock when its holder dies.

- `settings`: one launch at a time holds it, from its only read of run.json until it is written.
- `run`: all processes that work in a run share it; each first checks that run.json is still as
  planned. One process holds it alone, within `settings`, while it writes run.json.
- One lock per unit of work (`Run.lock_of`): the second process waits, then finds the unit done.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager

from datamask.errors import RunError
from datamask.runs.opening import open_run
from datamask.runs.run import Run
from datamask.storage.local import Storage


def settings(storage: Storage) -> AbstractContextManager[object]:
    """Hold a run's settings, from reading run.json until it is written; waits for the holder."""
    return storage.lock("settings")


def alone(storage: Storage) -> AbstractContextManager[object]:
    """Hold a run alone, within `settings`, to write its plan or change its settings.

    Raises:
        RunError: another process works in the run.
    """
    return storage.lock("run", shared=False)


def working(storage: Storage) -> AbstractContextManager[object]:
    """Share a run: its settings cannot change meanwhile."""
    return storage.lock("run", shared=True)


@contextlib.contextmanager
def working_on(run: Run) -> Iterator[None]:
    """Share a run; its settings must still be the settings of *run*.

    Raises:
        RunError: another launch has changed them since *run* was planned or opened.
    """
    with working(run.storage):
        current = open_run(run.address)
        if (current.settings, current.pinned_revisions) != (run.settings, run.pinned_revisions):
            raise RunError(
                f"{run.address}: another launch has changed the run's settings before this one "
                "started work; relaunch with the settings that you want"
            )
        yield
