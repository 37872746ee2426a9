"""Whether budget and limits of new settings can be met, from the counts that a run has on disk."""

from __future__ import annotations

from datamask.config.compute import Compute
from datamask.errors import DatamaskError, gathering
from datamask.quality.budget_checks import check_survivors
from datamask.quality.pruning import survivors
from datamask.runs.files import read_columns
from datamask.runs.run import Run
from datamask.runs.stages import stages_of
from datamask.selection.limits import COUNTS, check_bounds, group_column
from datamask.selection.repeats import load_epoch
from datamask.storage.duckdb_scratch import execute, temporary_duckdb

COUNTED = ("scores", "combined", "near_duplicates", "pruning")
"""Stages whose outputs tell which documents are left, and their tokens and groups."""


def counted_problems(run: Run, compute: Compute) -> list[DatamaskError] | None:
    """Problems of budget, limits and repeats; None if documents have not been counted.

    Args:
        run: a planned run with the new settings, which run.json need not have yet.
        compute: DuckDB's memory and threads.
    """
    problems: list[DatamaskError] = []
    stages = stages_of(run.settings)
    if not _is_done(run, "scores"):
        return None
    with gathering(problems):
        if not all(_is_done(run, stage) for stage in COUNTED if stage in stages):
            _check_scores(run, compute)
            return problems
        if "repeats" in stages and _is_done(run, "selection"):
            with temporary_duckdb(run.root, compute) as connection:
                load_epoch(connection, run)
        with survivors(run, compute) as (connection, _):
            check_survivors(connection, run, read_columns(run.path("pruning")))
    return problems


def _is_done(run: Run, stage: str) -> bool:
    return set(run.states(stage)) == {"done"}


def _check_scores(run: Run, compute: Compute) -> None:
    """Check what all documents allow, because it is not known which are left."""
    limits = run.settings.selection.limits
    name = group_column(limits[0].column, "s") if limits else "''"
    with temporary_duckdb(run.root, compute) as connection:
        execute(connection, COUNTS)
        for shard in range(run.num_shards):
            execute(
                connection,
                f"INSERT INTO counts SELECT {name}, count(*), sum(tokens) FROM read_parquet(?) s "
                "GROUP BY ALL",
                [str(run.path("scores", shard))],
            )
        check_bounds(connection, run.settings.selection, run.num_documents)
