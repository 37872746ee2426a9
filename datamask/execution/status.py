"""Report what is done, stale or missing in a run, by stage and by shard."""

from __future__ import annotations

import shlex

from datamask.errors import SettingsError
from datamask.runs.run import Run
from datamask.runs.stages import SHARD_STAGES, stages_of

LISTED_SHARDS = 1000


def run_status(run: Run) -> dict[str, list[str]]:
    """Return the states of the units of all stages, in order, from the files alone.

    A state is done, stale or missing. Rounds count up to the one that is next.
    """
    return {stage: run.states(stage) for stage in stages_of(run.settings)}


def next_step(run: Run, status: dict[str, list[str]]) -> str:
    """Say what to do next in an unfinished run: resume, or first repair its evaluation."""
    if next(stage for stage, states in status.items() if {*states} != {"done"}) == "training":
        from datamask.evaluation.arms import check_tokens

        try:
            check_tokens(run)
        except SettingsError as error:
            return str(error)
    return f"run `datamask rerun-failed {shlex.quote(run.address)}` to resume"


def shard_table(status: dict[str, list[str]], most: int = LISTED_SHARDS) -> list[dict[str, str]]:
    """Return a row per shard with its state in each stage: the first *most*, unfinished first.

    A shard's state in `round` is the state of its first unfinished round.
    """
    per_shard = {"file_scores", "vector_places", "quality", *SHARD_STAGES}
    stages = {stage: states for stage, states in status.items() if stage in per_shard}
    num_shards = len(next(iter(stages.values())))
    rows = []
    for shard in range(num_shards):
        row = {"shard": f"{shard:05d}"}
        for stage, states in stages.items():
            of_shard = states[shard::num_shards]
            row[stage] = next((state for state in of_shard if state != "done"), "done")
        rows.append(row)
    return sorted(rows, key=lambda row: {"stale", "missing"}.isdisjoint(row.values()))[:most]


def counts_line(status: dict[str, list[str]]) -> str:
    """Say in one line how much of every stage is done."""
    return ", ".join(
        f"{stage} {states.count('done'):,}/{len(states):,}" for stage, states in status.items()
    )
