"""Check that budget and limits of new settings can be met, from counts that a run has on disk."""

from __future__ import annotations

from datamask.config.compute import Compute
from datamask.errors import DatamaskError, gathering
from datamask.quality.budget_checks import check_survivors, count_documents
from datamask.quality.combining import load_documents, rows_of
from datamask.runs.run import Run
from datamask.runs.stages import stages_of
from datamask.selection.limits import COUNTS, check_bounds, group_column
from datamask.selection.repeats import load_epoch
from datamask.selection.topics import unknown_topics
from datamask.storage.duckdb_scratch import execute, temporary_duckdb


def counted_problems(run: Run, compute: Compute) -> list[DatamaskError] | None:
    """List problems of budget, limits and repeats; None if documents have not been counted.

    *run* is planned and has the new settings, which run.json need not have yet.
    """
    problems: list[DatamaskError] = []
    if "topic_model" in stages_of(run.settings) and _is_done(run, "topic_model"):
        problems += unknown_topics(run)
    if not _is_done(run, "scores"):
        return None
    with gathering(problems):
        if not _is_done(run, "quality"):
            _check_scores(run, compute)
            return problems
        if "repeats" in stages_of(run.settings) and _is_done(run, "selection"):
            with temporary_duckdb(run.root, compute) as connection:
                load_epoch(connection, run)
        with temporary_duckdb(run.root, compute) as connection:
            load_documents(connection, run, [])
            quality = rows_of(connection, run, "quality")
            result = f"SELECT q.*, tokens FROM {quality} q JOIN documents USING (shard, row)"
            execute(connection, f"CREATE VIEW result AS {result}")
            check_survivors(connection, run, count_documents(connection))
    return problems


def _is_done(run: Run, stage: str) -> bool:
    return set(run.states(stage)) == {"done"}


def _check_scores(run: Run, compute: Compute) -> None:
    """Check what all documents together allow, because the survivors are not known yet."""
    limits = run.settings.selection.limits_of_source
    name = group_column(limits[0].column, "s") if limits else "''"
    with temporary_duckdb(run.root, compute) as connection:
        execute(connection, COUNTS)
        load_documents(connection, run, [])
        counted = f"SELECT {name}, count(*), sum(tokens) FROM documents s GROUP BY ALL"
        execute(connection, f"INSERT INTO counts {counted}")
        check_bounds(connection, run.settings.selection, run.num_documents)
