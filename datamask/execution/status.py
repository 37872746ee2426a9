"""What is done, stale or missing in a run, by stage and by shard."""

from __future__ import annotations

from dataclasses import dataclass

from datamask.runs.run import Run
from datamask.runs.stages import SHARD_STAGES, stages_of

_PER_SHARD = frozenset({"file_scores", *SHARD_STAGES})
"""Stages that make files of a shard: one each, or one in every round."""

LISTED_SHARDS = 1000


@dataclass(frozen=True, slots=True)
class StageStatus:
    """A stage, and the state of each of its units in order: done, stale or missing."""

    stage: str
    states: tuple[str, ...]

    @property
    def left(self) -> list[int]:
        """The units that are not done."""
        return [unit for unit, state in enumerate(self.states) if state != "done"]


def run_status(run: Run) -> list[StageStatus]:
    """All stages of a run in order, from the files alone; of rounds, those due."""
    return [StageStatus(stage, tuple(run.states(stage))) for stage in stages_of(run.settings)]


def shard_table(status: list[StageStatus], most: int = LISTED_SHARDS) -> list[dict[str, str]]:
    """A row per shard with its state in each stage: unfinished shards first, at most *most* rows.

    A shard's state in `round` is that of its first unfinished round.
    """
    stages = [stage for stage in status if stage.stage in _PER_SHARD]
    num_shards = len(stages[0].states)
    rows = []
    for shard in range(num_shards):
        row = {"shard": f"{shard:05d}"}
        for stage in stages:
            states = stage.states[shard::num_shards]
            row[stage.stage] = next((state for state in states if state != "done"), "done")
        rows.append(row)
    return sorted(rows, key=lambda row: {"stale", "missing"}.isdisjoint(row.values()))[:most]


def counts_line(status: list[StageStatus]) -> str:
    """How much of every stage is done, in one line."""
    return ", ".join(
        f"{stage.stage} {stage.states.count('done')}/{len(stage.states)}" for stage in status
    )
