"""Model of the distribution of shards over workers, and of the time lost in it.

It models both engines of the pipeline: `parts` (child flow runs, each of which processes its own
list of shards in order) and `queue` (one flow run that submits tasks to free workers, as with Ray).
The costs of a task and of starting a part are inputs.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of orchestration in seconds.

    Args:
        task: of a worker between two tasks.
        submission: of the flow run per task; it submits tasks one by one.
        start: from the request for a part until its first task.
        part: of the server per part; it starts parts one by one.
        notice: until the end of a part is detected.
    """

    task: float = 0.0
    submission: float = 0.0
    start: float = 0.0
    part: float = 0.0
    notice: float = 0.0


@dataclass(frozen=True, slots=True)
class Schedule:
    """Result of a simulation.

    Args:
        seconds: from the first request to the end of the stage.
        busy: seconds of work, summed over workers.
        workers: number of workers.
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
    """Tasks in order, each on the first free worker, as fast as they are submitted."""
    free = [costs.start] * workers
    heapq.heapify(free)
    handed_out, end = 0.0, 0.0
    for task in batches(seconds, size):
        handed_out += costs.submission
        begins = max(heapq.heappop(free), handed_out)
        end = max(end, begins + costs.task + task)
        heapq.heappush(free, begins + costs.task + task)
    return Schedule(end + costs.notice, sum(seconds), workers)
