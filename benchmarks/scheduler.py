"""A model of how tasks of shards are dealt to workers, and what of the time is lost in doing so.

The two engines of the pipeline: `parts` (child flow runs, each with its own list of shards, which
it works off one after the other) and `queue` (one flow run that hands tasks to whoever is free, as
with Ray). What a task and the start of a part cost is measured elsewhere and given.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Costs:
    """What orchestration takes, in seconds.

    Args:
        task: of a worker, between two tasks.
        submission: of the flow run that hands out tasks, for each (they go out one by one).
        start: from asking for a part until it works.
        part: of the server, for starting one part (it starts them one by one).
        notice: until the end of a part is noticed.
    """

    task: float = 0.0
    submission: float = 0.0
    start: float = 0.0
    part: float = 0.0
    notice: float = 0.0


@dataclass(frozen=True, slots=True)
class Schedule:
    """What came of it.

    Args:
        seconds: from the first request to the end of the stage.
        busy: seconds that workers worked, all together.
        workers: how many there were.
    """

    seconds: float
    busy: float
    workers: int

    @property
    def lost(self) -> float:
        """Share of the workers' time in which they did not work."""
        return 1 - self.busy / (self.seconds * self.workers)


def batches(seconds: Sequence[float], size: int) -> list[float]:
    """Neighbouring shards as one task."""
    return [sum(seconds[first : first + size]) for first in range(0, len(seconds), size)]


def in_parts(seconds: Sequence[float], workers: int, size: int, costs: Costs) -> Schedule:
    """Part i of n works on shards i, i + n, i + 2n, ...; the stage ends with the last part."""
    ends = []
    for part in range(workers):
        tasks = batches(seconds[part::workers], size)
        begins = (part + 1) * costs.part + costs.start
        ends.append(begins + sum(tasks) + costs.task * len(tasks))
    return Schedule(max(ends) + costs.notice, sum(seconds), workers)


def in_a_queue(seconds: Sequence[float], workers: int, size: int, costs: Costs) -> Schedule:
    """Tasks in order, each to the worker that is free first, as fast as they are handed out."""
    free = [costs.start] * workers
    heapq.heapify(free)
    handed_out, end = 0.0, 0.0
    for task in batches(seconds, size):
        handed_out += costs.submission
        begins = max(heapq.heappop(free), handed_out)
        end = max(end, begins + costs.task + task)
        heapq.heappush(free, begins + costs.task + task)
    return Schedule(end + costs.notice, sum(seconds), workers)
