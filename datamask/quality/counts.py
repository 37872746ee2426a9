"""Count documents and tokens, for the question if the budget can be met (`runs.budget`).

Planning counts the source, and stage `quality` the documents that remain of it. If new settings
keep the same documents, planning asks the run that has counted them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from datamask.config.compute import Compute
from datamask.config.settings import Settings
from datamask.errors import DatamaskError, InputError, SettingsError, gathering
from datamask.quality.combining import facts_of, load_documents, rows_of
from datamask.runs import schemas
from datamask.runs.budget import (
    Counts,
    budget_problems,
    check_budget,
    too_many_cells,
    total_units,
    unit_of,
)
from datamask.runs.run import Run
from datamask.runs.stages import stages_of
from datamask.selection.documents import check_tokens
from datamask.selection.repeats import load_epoch
from datamask.selection.threshold import check_limits, cut_table, name_of, quality_edges
from datamask.storage.duckdb_scratch import execute, temporary_duckdb

COUNTS = "CREATE TABLE counts (name VARCHAR, documents BIGINT, tokens HUGEINT)"
"""SQL: the table of `problems_of_source`, by the limits' column; any number of rows per name."""

SURVIVORS = "result WHERE dropped IS NULL"
"""SQL: the documents that remain, in the view `result`."""

Reasons = list[tuple[int, str | None, int, int]]
"""Shard, reason to drop (None: kept), documents and tokens."""


def problems_of_source(
    connection: Any, settings: Settings, documents: int
) -> Iterator[SettingsError]:
    """Yield what all *documents* of the source cannot give, by DuckDB's table `counts`.

    Of the limits, only groups that columns define are counted (`Settings.selection_by_columns`).
    """
    selection, known = settings.selection, settings.selection_by_columns
    unit = unit_of(selection)
    by_group = f"SELECT name, coalesce(sum({unit}), 0) FROM counts GROUP BY name"
    ((tokens,),) = execute(connection, "SELECT coalesce(sum(tokens), 0) FROM counts")
    groups = dict(execute(connection, by_group)) if known.limits else None
    if selection.has_cells and not known.has_cells:
        yield from too_many_cells(len(groups or ()))
    # A budget of documents may have any number of tokens, at most those of the whole source.
    epoch = (0, tokens) if selection.training_tokens and not selection.tokens else None
    yield from budget_problems(known, Counts(documents, tokens=tokens, groups=groups, epoch=epoch))


def known_problems(run: Run, compute: Compute) -> list[DatamaskError] | None:
    """List problems of budget, limits and repeats; None if documents have not been counted.

    *run* is planned and has the new settings, which run.json need not have yet.
    """
    problems: list[DatamaskError] = []
    if "topic_model" in stages_of(run.settings) and _is_done(run, "topic_model"):
        from datamask.selection.topics import unknown_topics  # This imports torch.

        problems += unknown_topics(run)
    own = run.settings.source.groups.keys() & {*run.settings.selection.limited}
    if not all(_is_done(run, stage) for stage in ("scores", *(["groups"] if own else []))):
        return None
    is_left_known = _is_done(run, "quality")
    with gathering(problems):
        if is_left_known and "repeats" in stages_of(run.settings) and _is_done(run, "selection"):
            with temporary_duckdb(run.root, compute) as connection:
                load_epoch(connection, run)
        with temporary_duckdb(run.root, compute) as connection:
            load_documents(connection, run, [])
            if not is_left_known:
                return [*problems, *_problems_of_scores(connection, run)]
            quality = rows_of(connection, run, "quality")
            result = f"SELECT q.*, tokens FROM {quality} q JOIN documents USING (shard, row)"
            execute(connection, f"CREATE VIEW result AS {result}")
            check_survivors(connection, run, count_documents(connection))
    return problems


def _is_done(run: Run, stage: str) -> bool:
    return set(run.states(stage)) == {"done"}


def _problems_of_scores(connection: Any, run: Run) -> Iterator[SettingsError]:
    """Count all documents by stage `scores`, because it is not known which are left."""
    known = run.settings.selection_by_columns
    name = name_of(known, "s")
    execute(connection, COUNTS)
    facts = facts_of(connection, run, known.limited)
    counted = f"SELECT {name}, count(*), sum(tokens) FROM {facts} s GROUP BY ALL"
    execute(connection, f"INSERT INTO counts {counted}")
    return problems_of_source(connection, run.settings, run.num_documents)


def count_documents(connection: Any) -> Reasons:
    """Count documents and tokens of each shard by reason to drop them, from the view `result`."""
    return execute(
        connection,
        "SELECT shard, dropped, count(*), coalesce(sum(tokens), 0)::BIGINT FROM result "
        "GROUP BY ALL ORDER BY ALL",
    )


def check_survivors(connection: Any, run: Run, reasons: Reasons) -> None:
    """Check what pruning leaves, by the views `result` and `documents` (`load_documents`).

    Raises:
        InputError: no document survives, or one has no number of tokens and the settings need it.
        SettingsError: the budget, its limits or the training cannot be met (`budget_problems`); in
            tokens, limits in order of quality.
    """
    selection = run.settings.selection
    if selection.needs_tokens:
        first = execute(
            connection,
            "SELECT shard, row, tokens FROM result WHERE dropped IS NULL AND (tokens IS NULL OR "
            "tokens < 0) ORDER BY shard, row LIMIT 1",
        )
        for shard, row, tokens in first:
            check_tokens(run, shard, pa.array([row]), pa.array([tokens], pa.int64()))
    by_reason = dict.fromkeys(schemas.DROP_REASONS, 0)
    kept = tokens = 0
    for _, reason, documents, units in reasons:
        if reason:
            by_reason[reason] += documents
        else:
            kept, tokens = kept + documents, tokens + units
    why = ", ".join(f"{number:,} {reason}" for reason, number in by_reason.items())
    if not kept:
        problem = f"no document is left of {run.num_documents:,} ({why})"
        raise InputError(f"{problem}; change the setting that drops most")
    epoch = _epoch_of_survivors(connection, run)
    check_budget(selection, Counts(run.num_documents, kept, why, tokens, epoch=epoch))
    if selection.without_limits_of("topic").limits:
        _check_limits(connection, run)


def _check_limits(connection: Any, run: Run) -> None:
    """Check that every group has what its floor asks for, and that the caps leave enough.

    In tokens, the order of documents decides how well they fill the caps. So the cut itself is
    tried, in order of quality alone.
    """
    selection = run.settings.selection.without_limits_of("topic")
    name = name_of(selection, "facts", quality_edges(connection, selection, SURVIVORS))
    facts = facts_of(connection, run, selection.limited)
    unit = "1" if selection.tokens is None else "result.tokens"
    execute(
        connection,
        f"CREATE VIEW candidates AS SELECT shard, {name} AS name, quality::FLOAT AS logit, "
        f"quality, result.id AS id, {unit} AS units FROM result JOIN {facts} facts "
        "USING (shard, row) WHERE dropped IS NULL",
    )
    total = total_units(selection, run.num_documents)
    if selection.tokens is None:
        check_limits(connection, selection, total)
    else:
        cut_table(connection, selection, total)


def _epoch_of_survivors(connection: Any, run: Run) -> tuple[int, int] | None:
    """Return the least and most that a selection of the budget's size has, in training's unit.

    None if the budget says it, or the limits allow only some of these selections.
    """
    selection = run.settings.selection
    in_tokens = selection.tokens is not None
    is_known = in_tokens == (selection.training_tokens is not None)
    if selection.training is None or selection.limits or is_known:
        return None
    total = total_units(selection, run.num_documents)
    counts = execute(
        connection,
        "SELECT tokens, count(*) FROM result WHERE dropped IS NULL AND tokens IS NOT NULL "
        "GROUP BY tokens ORDER BY tokens",
    )
    epochs = [_epoch(counts[::step], total, in_tokens=in_tokens) for step in (1, -1)]
    return min(epochs), max(epochs)


def _epoch(counts: list[tuple[int, int]], total: int, *, in_tokens: bool) -> int:
    """Count the tokens of the first *total* documents or, *in_tokens*, the documents up to *total*.

    *counts* has lengths in tokens with how many documents have them, in the order of documents.
    """
    documents = tokens = 0
    for length, number in counts:
        remaining = total - (tokens if in_tokens else documents)
        if remaining <= 0:
            break
        if in_tokens:
            remaining = -(-remaining // length) if length else number
        documents += min(number, remaining)
        tokens += min(number, remaining) * length
    return documents if in_tokens else tokens
