"""Check from counts of documents and tokens that budget, limits and repeats can be met.

Stage `quality` asks when it knows which documents survive, and planning asks for new settings that
leave the same documents.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from datamask.errors import InputError, SettingsError
from datamask.runs import budget, schemas
from datamask.runs.run import Run
from datamask.selection.documents import check_tokens
from datamask.selection.limits import group_column, make_bounds
from datamask.selection.threshold import cut_table
from datamask.storage.duckdb_scratch import execute

Counts = list[tuple[int, str | None, int, int]]
"""Shard, reason to drop (None: kept), documents and tokens."""


def count_documents(connection: Any) -> Counts:
    """Count documents and tokens of each shard by reason to drop them, from the view `result`."""
    return execute(
        connection,
        "SELECT shard, dropped, count(*), coalesce(sum(tokens), 0)::BIGINT FROM result "
        "GROUP BY ALL ORDER BY ALL",
    )


def check_survivors(connection: Any, run: Run, counts: Counts) -> None:
    """Check what pruning leaves, by the views `result` and `documents` (`load_documents`).

    Raises:
        InputError: no document survives, or one has no number of tokens and the settings need it.
        SettingsError: fewer documents or tokens survive than the budget needs, limits cannot be met
            in order of quality, or no selection can give what training asks for.
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
    _check_left(run, counts)
    if selection.limits_of_source:
        _check_limits(connection, run)
    if selection.training is not None:
        _check_training(connection, run)


def _check_left(run: Run, counts: Counts) -> None:
    by_reason = dict.fromkeys(schemas.DROP_REASONS, 0)
    kept = tokens = 0
    for _, reason, documents, units in counts:
        if reason:
            by_reason[reason] += documents
        else:
            kept, tokens = kept + documents, tokens + units
    why = ", ".join(f"{number:,} {reason}" for reason, number in by_reason.items())
    if not kept:
        raise InputError(f"no document is left of {run.num_documents:,} ({why})")
    selection = run.settings.selection
    total = budget.total_units(selection, run.num_documents)
    if selection.tokens is not None:
        if total > tokens:
            raise SettingsError(
                f"selection.tokens: {total:,} tokens are to be kept, but the {kept:,} documents "
                f"that are left ({why}) have {tokens:,}; lower it, or lower quality.prune_fraction"
            )
    elif total > kept and not selection.mask_model:
        raise SettingsError(
            f"{budget.setting_of_documents(selection)}: {total:,} documents are to be kept, but of "
            f"{run.num_documents:,} only {kept:,} are left ({why}); lower it, or lower "
            "quality.prune_fraction"
        )


def _check_limits(connection: Any, run: Run) -> None:
    """Check that every group has what its floor asks for, and that the caps leave enough.

    In tokens, the order of documents decides how well they fill the caps. So the cut itself is
    tried, in order of quality alone.
    """
    selection = run.settings.selection
    name = group_column(selection.limits[0].column, "documents")
    unit = "1" if selection.tokens is None else "result.tokens"
    execute(
        connection,
        f"CREATE VIEW candidates AS SELECT shard, {name} AS name, quality::FLOAT AS logit, "
        f"quality, result.id AS id, {unit} AS units FROM result JOIN documents USING (shard, row) "
        "WHERE dropped IS NULL",
    )
    total = budget.total_units(selection, run.num_documents)
    if selection.tokens is None:
        make_bounds(connection, selection, total, "candidates")
    else:
        cut_table(connection, selection, total)


def _check_training(connection: Any, run: Run) -> None:
    """Check that training can see and repeat some selection of the budget's size."""
    selection = run.settings.selection
    total = budget.total_units(selection, run.num_documents)
    in_tokens = selection.tokens is not None
    if selection.limits or in_tokens == (selection.training_tokens is not None):
        return  # caps may leave a document less; or planning has compared the epoch
    counts = execute(
        connection,
        "SELECT tokens, count(*) FROM result WHERE dropped IS NULL AND tokens IS NOT NULL "
        "GROUP BY tokens ORDER BY tokens",
    )
    epochs = [_epoch(counts[::step], total, in_tokens=in_tokens) for step in (1, -1)]
    budget.check_training(selection, min(epochs), max(epochs))


def _epoch(counts: list[tuple[int, int]], total: int, *, in_tokens: bool) -> int:
    """Return tokens of the first *total* documents; *in_tokens*: how many reach *total*.

    *counts*: a number of tokens, and the documents that have it, in the order of the documents.
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
