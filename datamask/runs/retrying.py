"""Repeat work after a transient error: how many attempts, and how long the pauses are.

The command line, Python and the tasks of Prefect share these pauses, and `errors.may_heal` decides.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from typing import TypeVar

from datamask.errors import describe, may_heal
from datamask.storage.stopping import pause

Result = TypeVar("Result")

logger = logging.getLogger(__name__)

PAUSES = [1.0, 4.0, 15.0]
"""Seconds before each further attempt: one per attempt. Up to a quarter is added at random."""

JITTER = 0.25


def attempts() -> Iterator[bool]:
    """Yield before each attempt: True if it is the last. Pause before all but the first."""
    yield not PAUSES
    for number, seconds in enumerate(PAUSES, 1):
        pause(seconds * random.uniform(1, 1 + JITTER))
        yield number == len(PAUSES)


def retried(work: Callable[[], Result]) -> Result:
    """Do *work*, and repeat it after transient errors.

    Raises:
        Exception: the error of the last attempt, or the first error that a retry cannot heal.
    """
    for is_last in attempts():
        try:
            return work()
        except Exception as error:
            if is_last or not may_heal(error):
                raise
            warn(error)
    raise AssertionError("unreachable: the last attempt returns or raises")


def warn(error: BaseException) -> None:
    """Log that work has failed with this error and will be repeated."""
    logger.warning("%s; trying again", describe(error))
