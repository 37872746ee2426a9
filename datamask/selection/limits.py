"""Floors and caps of groups: resolve them for each group, and check that they can be met."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pyarrow as pa

from datamask.config.selection import NO_GROUP, Selection
from datamask.errors import SettingsError
from datamask.runs import budget
from datamask.storage.duckdb_scratch import execute, execute_with


def group_bounds(
    selection: Selection, total: int, names: Iterable[str]
) -> dict[str, tuple[int, int]]:
    """Return floor and cap of the groups that have limits; documents or tokens, as *total*."""
    own = {
        limit.value: (round(limit.floor * total), round(limit.cap * total))
        for limit in selection.limits
    }
    bounds_of = {name: own.get(name, own.get(None)) for name in names}
    return {name: bounds for name, bounds in bounds_of.items() if bounds is not None}


def check_limits(selection: Selection, total: int, units_of: Mapping[str, int]) -> None:
    """Check that floors and caps can be met.

    Args:
        selection: with its limits.
        total: the whole budget, in documents or tokens.
        units_of: documents or tokens of each group, without documents longer than the group's cap.

    Raises:
        SettingsError: a group has less than its floor, the floors exceed the budget (small
            budgets, by rounding), or the caps leave less than the budget.
    """
    unit = "tokens" if selection.tokens is not None else "documents"
    least = 0
    for limit in selection.limits:
        if limit.value is None:
            continue
        due, there = round(limit.floor * total), units_of.get(limit.value, 0)
        least += due
        if there < due:
            raise SettingsError(
                f"selection.limits: the floor of {limit.column} {limit.value} asks for {due:,} "
                f"{unit}, but only {there:,} are left; lower the floor"
            )
    if least > total:
        raise SettingsError(
            f"selection.limits: the floors add up to {least:,} {unit}, but only {total:,} "
            "are to be kept; lower them"
        )
    caps = {name: cap for name, (_, cap) in group_bounds(selection, total, units_of).items()}
    most = sum(min(there, caps.get(name, there)) for name, there in units_of.items())
    if most < total:
        raise too_little(selection, most, total, caps)


COUNTS = "CREATE TABLE counts (name VARCHAR, documents BIGINT, tokens HUGEINT)"
"""SQL: the table of `check_bounds`; any number of rows per name."""


def check_bounds(connection: Any, selection: Selection, documents: int) -> None:
    """Check that all documents of the source together allow the settings, before any is dropped.

    Args:
        connection: DuckDB with table `counts`: documents and tokens by the limits' column.
        selection: the settings.
        documents: in the source.

    Raises:
        SettingsError: the tokens do not suffice for the budget or the training, or a group or all
            groups together have less than the limits need.
    """
    total, in_tokens = budget.total_units(selection, documents), selection.tokens is not None
    ((tokens,),) = execute(connection, "SELECT coalesce(sum(tokens), 0) FROM counts")
    if in_tokens and total > tokens:
        raise SettingsError(
            f"selection.tokens: {total:,} tokens are to be kept, but all {documents:,} documents "
            f"of the source have {tokens:,}; lower it"
        )
    if selection.limits_of_source:
        unit = "tokens" if in_tokens else "documents"
        units = f"SELECT name, coalesce(sum({unit}), 0) FROM counts GROUP BY name"
        check_limits(selection, total, dict(execute(connection, units)))
    if selection.training_tokens is not None:
        budget.check_training(selection, 0, tokens)


def too_little(
    selection: Selection, most: int, total: int, limited: Collection[str]
) -> SettingsError:
    """Return the error to raise if the caps leave less than the budget."""
    unit = "tokens" if selection.tokens is not None else "documents"
    column = selection.limits[0].column
    remedy = f"raise them, or keep {most}"
    if NO_GROUP in limited:
        remedy += f"; documents without a {column} form the group {NO_GROUP}, which has its own cap"
    return SettingsError(
        f"selection.limits: the caps leave {most:,} {unit}, but {total:,} are to be kept; {remedy}"
    )


def group_column(column: str, table: str) -> str:
    """Return SQL for the name of a document's group."""
    return f"coalesce({table}.\"{column}\", '{NO_GROUP}')"


def make_bounds(connection: Any, selection: Selection, total: int, table: str) -> dict[str, int]:
    """Make the table `bounds` (name, floor, cap) of the limited groups; return caps by name.

    *table* names the groups: it has the columns name and units.

    Raises:
        SettingsError: the limits cannot be met.
    """
    names = [name for (name,) in execute(connection, f"SELECT DISTINCT name FROM {table}")]
    bounds_of = group_bounds(selection, total, names)
    rows = [{"name": name, "floor": floor, "cap": cap} for name, (floor, cap) in bounds_of.items()]
    schema = pa.schema([("name", pa.string()), ("floor", pa.int64()), ("cap", pa.int64())])
    given = pa.Table.from_pylist(rows, schema=schema)
    execute_with(connection, given, "CREATE TEMP TABLE bounds AS FROM arriving")
    units = execute(
        connection,
        f"SELECT name, sum(units)::BIGINT FROM {table} LEFT JOIN bounds USING (name) "
        "WHERE cap IS NULL OR units <= cap GROUP BY name",
    )
    check_limits(selection, total, dict.fromkeys(names, 0) | dict(units))
    return {name: cap for name, (_, cap) in bounds_of.items()}
