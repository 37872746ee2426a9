"""Stage `repeats`: how often training sees each selected document.

The k-th exposure of a document is worth (1 + max(logit, 0)) DECAY^(k - 1) (docs/repeats.md). Every
document has a first exposure. Further exposures follow in order of higher value, higher logit,
higher quality, smaller id, until training sees the total: exactly in documents; in tokens, the
exposure that reaches it is the last one. No choice of as many exposures is worth more. A document
has at most `max_repeat` of them, or fewer by the `repeat_caps` of its groups.

`repeats.parquet` holds the last exposure, and a document's repeats follow from it and its own row.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import accumulate, repeat
from operator import mul
from typing import Any

import pyarrow as pa

from datamask.config.compute import Compute
from datamask.config.selection import RepeatCap, Selection
from datamask.runs import budget, schemas
from datamask.runs.output import write_output
from datamask.runs.run import Run
from datamask.selection.documents import read_column, read_groups, read_ranked, read_survivors
from datamask.selection.order import NOTHING, ORDER, is_kept
from datamask.selection.threshold import group_column
from datamask.storage.duckdb_scratch import execute, execute_with, last_within, temporary_duckdb

logger = logging.getLogger(__name__)

DECAY = 0.939
"""Value of an exposure, as a fraction of the previous exposure's (docs/log.md#repeats)."""

_FIRST = "(1 + greatest(logit, 0)::DOUBLE)"


def find_last_exposure(run: Run, compute: Compute) -> None:
    """Find the exposure with which training reaches its total; write it to `repeats.parquet`.

    The metrics of the receipt, in documents or tokens like the setting: `epoch` (every document
    once) and `total` (what training sees).

    Raises:
        InputError: the total is in tokens, and a document has no number of them.
        SettingsError: the total is less than one epoch or more than `max_repeat` epochs.
    """
    selection = run.settings.selection
    with temporary_duckdb(run.root, compute) as connection:
        epoch = load_epoch(connection, run)
        for cap in selection.repeat_caps:
            if not execute(
                connection, f"SELECT 1 FROM chosen WHERE {_is_in(cap, 'chosen')} LIMIT 1"
            ):
                text = "selection.repeat_caps: no selected document has %s `%s`; check the name"
                logger.warning(text, cap.column, cap.value)
        total = max(epoch, selection.training or 0)
        last = last_exposure(connection, selection.max_repeat, total - epoch)
    row = dict(zip(schemas.LAST_EXPOSURE.names, last, strict=True))
    table = pa.Table.from_pylist([row], schema=schemas.LAST_EXPOSURE)
    logger.info("repeats: training sees %d, an epoch has %d", total, epoch)
    metrics = {"epoch": epoch, "total": total}
    write_output(run, "repeats", 0, schemas.LAST_EXPOSURE, [table], metrics)


def load_epoch(connection: Any, run: Run) -> int:
    """Make the view `kept` of the selected documents; sum their units.

    It has logit, quality, id, units and `most`, the most exposures of a document.

    Raises:
        RunError, InputError, SettingsError: as in `find_last_exposure`.
    """
    selection = run.settings.selection
    capped = list(dict.fromkeys(name for cap in selection.repeat_caps for name in cap.columns))
    columns = ["logit FLOAT", "quality DOUBLE", "id VARCHAR", "units BIGINT"]
    columns += [f'"{name}" VARCHAR' for name in capped]
    connection.execute(f"CREATE TABLE chosen ({', '.join(columns)})")
    most = most_exposures(selection, "chosen")
    connection.execute(
        f"CREATE VIEW kept AS SELECT logit, quality, id, units, {most} AS most FROM chosen"
    )
    in_tokens = selection.training_tokens is not None
    for shard in range(run.num_shards):
        documents = read_survivors(run, shard)
        ranked = read_ranked(run, "selection", documents, in_tokens=in_tokens)
        for name in capped:
            ranked = ranked.append_column(name, read_groups(run, documents, name))
        kept = ranked.filter(read_column(run, "selection", documents, "selected"))
        execute_with(connection, kept, "INSERT INTO chosen FROM arriving")
    sums = "coalesce(sum(units), 0)::BIGINT, coalesce(sum(units * most), 0)::BIGINT"
    ((epoch, repeated),) = execute(connection, f"SELECT {sums} FROM kept")
    # A budget of tokens is exceeded by a part of a document, and then an epoch is as well.
    least = min(epoch, selection.tokens) if selection.tokens is not None and in_tokens else epoch
    counts = budget.Counts(run.num_documents, epoch=(least, least))
    budget.check_budget(selection, replace(counts, repeated=repeated) if capped else counts)
    return int(epoch)


def most_exposures(selection: Selection, table: str) -> str:
    """Return SQL for how often training may see a document at most.

    That is `max_repeat`, or less if `repeat_caps` limits a group of the document. *table* has a
    column for each of these groups.
    """
    most = str(selection.max_repeat)
    caps = [f"if({_is_in(cap, table)}, {cap.most}, {most})" for cap in selection.repeat_caps]
    return f"least({', '.join([most, *caps])})::INTEGER"


def _is_in(cap: RepeatCap, table: str) -> str:
    names = zip(cap.columns, (group.replace("'", "''") for group in cap.groups), strict=True)
    return " AND ".join(f"{group_column(column, table)} = '{name}'" for column, name in names)


def _weights(max_repeat: int) -> list[str]:
    """Return SQL for the value of each exposure after the first, as a fraction of the first."""
    weights = accumulate(repeat(DECAY, max_repeat - 1), mul)
    return [f"'{weight!r}'::DOUBLE" for weight in weights]


def last_exposure(connection: Any, max_repeat: int, units: int) -> tuple[Any, ...]:
    """Return the exposure at which the exposures after the first reach *units*.

    Args:
        connection: DuckDB, with `kept` (logit, quality, id, units, most).
        max_repeat: the most exposures of a document, at least 2.
        units: documents or tokens, as in the table.

    Returns:
        The values of `schemas.LAST_EXPOSURE`.
    """
    if not units:
        return (float("inf"), *NOTHING)
    connection.execute(
        f"CREATE TEMP VIEW exposures AS SELECT {_FIRST} * weight AS value, kept.* "
        f"FROM kept, (SELECT unnest([{', '.join(_weights(max_repeat))}]) AS weight, "
        f"unnest(range(2, {max_repeat + 1})) AS number) WHERE number <= most"
    )
    return last_within(connection, "exposures", units, f"value DESC, {ORDER}")


def repeat_column(last: tuple[Any, ...], max_repeat: int) -> str:
    """Return SQL: how often training sees a selected document with columns logit, quality and id.

    Args:
        last: the values of `schemas.LAST_EXPOSURE`.
        max_repeat: the most exposures of a document.
    """
    limit, is_before = f"'{last[0]!r}'::DOUBLE", is_kept(last[1:])
    seen = (
        f"({worth} > {limit} OR ({worth} = {limit} AND {is_before}))::INTEGER"
        for worth in (f"{_FIRST} * {weight}" for weight in _weights(max_repeat))
    )
    return f"(1 + {' + '.join(seen)})::INTEGER"


def with_repeat(run: Run, documents: pa.Table, compute: Compute) -> pa.Table:
    """Add column `repeat`: how often training sees a document; null if it is not selected.

    If each document is seen at most once (`selection.max_repeat: 1`), no column is added.
    """
    if run.settings.selection.max_repeat == 1:
        return documents
    run.receipt("repeats")
    (row,) = run.read_output("repeats").to_pylist()
    selection = run.settings.selection
    repeats = repeat_column(tuple(row.values()), selection.max_repeat)
    repeats = f"least({repeats}, {most_exposures(selection, 'documents')})"
    with temporary_duckdb(run.root, compute) as connection:
        connection.register("documents", documents)
        query = f"SELECT *, if(selected, {repeats}, NULL) AS repeat FROM documents"
        return connection.sql(query).to_arrow_table()
