"""Say how far a run is: the stages at work, their units, the rate and the time left.

The numbers come from `datamask.runs.in_progress`, with a line for the whole. Time left follows from
what is finished and from the records of earlier launches. It never follows from a limit, such as
the most steps of learning.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple

from datamask.runs.in_progress import Work, running
from datamask.runs.records import seconds_before
from datamask.runs.run import Run
from datamask.runs.stages import STAGES, stages_of

logger = logging.getLogger(__name__)

MOST_SHARDS = 1000
"""Number of shards up to which records give the time of a whole run: one look per file."""


class Shown(NamedTuple):
    """A stage at work: its name, the fraction done in [0, 1] or None, and the rest in words.

    `left` is the time left in seconds, None if unknown.
    """

    stage: str
    share: float | None
    text: str
    left: float | None


class Stages:
    """The stages at work, with the units that are done and the time since they were first seen.

    *log* takes a line about a finished stage.
    """

    def __init__(self, log: Callable[[str], None] = logger.info) -> None:
        self.log = log
        self.units: dict[str, tuple[int, int]] = {}
        self.finished: dict[str, tuple[int, float]] = {}
        self.started: dict[str, float] = {}
        self.began = time.monotonic()
        self.expected: dict[str, float | None] = {}

    def expect(self, run: Run, workers: int) -> None:
        """Note all stages of a run, with the seconds that their remaining work took before."""
        can_look = run.address == str(run.root) and run.num_shards <= MOST_SHARDS
        for stage in stages_of(run.settings):
            self.expected[stage] = _expected(run, stage, workers) if can_look else None

    def advance(self, stage: str, done: int, total: int) -> None:
        """See `datamask.execution.attempts.Progress`."""
        now = time.monotonic()
        started = self.started.setdefault(stage, now)
        before, _ = self.units.setdefault(stage, (done, total))
        if done > before:
            self.finished[stage] = (self.finished.get(stage, (0, 0.0))[0] + done - before, now)
        self.units[stage] = (done, total)
        if done == total:
            self.log(f"{stage}: {done:,} of {total:,} done in {clock(now - started)}")

    def shown(self) -> list[Shown]:
        """List the stages at work now."""
        stages: dict[str, list[Work]] = {}
        for work in running():
            stages.setdefault(work.stage, []).append(work)
        return [self._shown(stage, works) for stage, works in stages.items()]

    def whole(self, shown: list[Shown]) -> str:
        """Say how far the whole is; empty before the stages of the run are known.

        The whole time is given if the time left of this stage and of all later ones is known.
        """
        stage = shown[0].stage.partition("/")[0] if shown else ""
        if stage not in self.expected:
            return ""
        number = list(self.expected).index(stage) + 1
        elapsed = time.monotonic() - self.began
        text = f"stage {number} of {len(self.expected)}, {clock(elapsed)} spent"
        left = [shown[0].left, *list(self.expected.values())[number:]]
        known = [seconds for seconds in left if seconds is not None]
        return text + f" of about {clock(elapsed + sum(known))}" * (len(known) == len(left))

    def _shown(self, stage: str, works: list[Work]) -> Shown:
        now = time.monotonic()
        elapsed = now - self.started.setdefault(stage, min(work.started for work in works))
        within = [work for work in works if work.total]
        # A unit without a label is the whole stage, whatever the number of its files.
        is_whole = any(not work.label for work in within)
        done, total = (0, 0) if is_whole else self.units.get(stage, (0, 0))
        parts = [f"{done:,} of {total:,} done"] if total > 1 else []
        if within:
            counts = sum(work.done for work in within), sum(work.total for work in within)
            parts.append(f"{counts[0]:,d} of {counts[1]:,d} {within[0].what}")
            rate = sum(work.done / max(now - work.started, 1e-3) for work in within)
            parts += [f"{rate:,.0f}/s"] * (rate >= 1)
        exact = sum(work.done / work.total for work in within if not work.is_bound)
        share, before = (done + exact) / max(total, len(works)), self.expected.get(stage)
        spent = [elapsed if is_whole else now - work.started for work in works]
        waiting = max(total - done - len(works), 0)
        left = _left(works, spent, waiting, self._mean_of_finished(stage, len(works)))
        if left is None and share < 1 and before and before > elapsed:
            left = before - elapsed
        parts.append(f"{clock(elapsed)} spent" if left is None else f"{clock(left)} left")
        return Shown(stage, share if share else None, ", ".join(parts), left)

    def _mean_of_finished(self, stage: str, at_once: int) -> float | None:
        """Return the mean seconds of finished units of a stage, *at_once* at a time."""
        number, last = self.finished.get(stage, (0, 0.0))
        return (last - self.started[stage]) * at_once / number if number else None


SLOW = 2.0
"""A unit that has taken so many times as long as finished ones differs in kind."""


def _left(works: list[Work], spent: list[float], waiting: int, mean: float | None) -> float | None:
    """Estimate the seconds left of a stage; None if finished units do not determine them.

    A unit that reports how far it is goes on at its pace, and another one takes as long as finished
    ones. Units of one stage may differ: an arm that selects anew takes far longer than one that
    exists, so a unit that takes longer than others did leaves the time unknown.

    Args:
        works: the units in progress.
        spent: the seconds that each has taken.
        waiting: number of units that have not begun.
        mean: seconds of finished units; None without any.
    """
    whole = []
    for work, seconds in zip(works, spent, strict=True):
        if work.total and work.done and not work.is_bound:
            whole.append(seconds * work.total / work.done)
        elif mean is not None and seconds <= SLOW * mean:
            whole.append(max(mean, seconds))
        else:
            return None
    left = max(total - seconds for total, seconds in zip(whole, spent, strict=True))
    each = sum(whole) / len(whole) if mean is None else mean
    return left + waiting * each / len(works) or None


def _expected(run: Run, stage: str, workers: int) -> float | None:
    """Return the seconds that a stage's remaining work took before; None if unknown."""
    unfinished = [unit for unit, state in enumerate(run.states(stage)) if state != "done"]
    if not unfinished:
        return 0.0
    if STAGES[stage].each == "round" or stage == "round":
        return None  # Their number depends on the documents.
    seconds = seconds_before(run, stage, unfinished)
    if seconds is None or not STAGES[stage].in_parallel:
        return seconds
    return seconds / min(workers, len(unfinished))


def clock(seconds: float) -> str:
    """Write seconds as 0:07 or 1:02:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def lines(
    stages: Stages, seconds: float, write: Callable[[str], None]
) -> AbstractContextManager[None]:
    """Write a line for the whole and for each stage at work every *seconds*."""

    def show() -> None:
        rows = stages.shown()
        for line in (stages.whole(rows), *(f"{row.stage}: {row.text}" for row in rows)):
            if line:
                write(line)

    return every(seconds, show)


@contextlib.contextmanager
def every(seconds: float, call: Callable[[], None]) -> Iterator[None]:
    """Call a function every *seconds*, from a thread, while the block runs."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            call()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
