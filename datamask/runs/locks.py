"""Who may work where in a run; its storage keeps the locks until their holder dies.

- `settings`: held by one launch at a time, from its only read of run.json until it is written.
- `run`: held shared by all processes that work in a run, each of which makes sure first that
  run.json is still what it was planned with; held alone, within `settings`, while run.json is
  written.
- One for each unit of work: the second process waits, then finds it done.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager

from datamask.errors import RunError
from datamask.runs.opening import open_run
from datamask.runs.run import Run
from datamask.storage.protocol import Storage


def settings(storage: Storage) -> AbstractContextManager[object]:
    """Hold a run's settings, from reading run.json until they are written; waits."""
    return storage.lock("settings")


def alone(storage: Storage) -> AbstractContextManager[object]:
    """Hold a run alone, within `settings`, in order to write its plan or change its settings.

    Raises:
        RunError: another process works in it.
    """
    return storage.lock("run", shared=False)


def working(storage: Storage) -> AbstractContextManager[object]:
    """Hold a run shared: its settings stay what they are meanwhile."""
    return storage.lock("run", shared=True)


@contextlib.contextmanager
def working_on(run: Run) -> Iterator[None]:
    """Hold a run shared, with the settings that *run* has: they cannot be changed meanwhile.

    Raises:
        RunError: another launch has changed them since *run* was planned or opened.
    """
    with working(run.storage):
        found = open_run(run.address)
        if (found.settings, found.pinned_revisions) != (run.settings, run.pinned_revisions):
            raise RunError(
                f"{run.address}: another launch has changed its settings before the work of this "
                "one began; relaunch with the settings that are wanted"
            )
        yield


def unit_of_work(storage: Storage, stage: str, unit: int | None) -> AbstractContextManager[object]:
    """Hold one shard of a stage alone (*unit* None: a stage that looks at every shard); waits."""
    return storage.lock(stage if unit is None else f"{stage}-{unit:05d}")
