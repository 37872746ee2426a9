"""Floors and caps of groups: which there are, and whether they can be kept."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from datamask.config.selection import NO_GROUP, Selection
from datamask.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Bounds:
    """Least and most of a group, in documents or tokens."""

    floor: int
    cap: int


def group_bounds(selection: Selection, total: int, name: str) -> Bounds | None:
    """The limits of a group by its name; None where there are none.

    Args:
        selection: with its limits.
        total: the whole budget, in documents or tokens.
        name: the group's dump, language or domain, `NO_GROUP` without one.
    """
    for limit in sorted(selection.limits, key=lambda limit: limit.value is None):
        if limit.value in (name, None):
            return Bounds(round(limit.floor * total), round(limit.cap * total))
    return None


def check_limits(selection: Selection, total: int, found: Mapping[str, int]) -> None:
    """Whether floors and caps can be kept.

    Args:
        selection: with its limits.
        total: the whole budget, in documents or tokens.
        found: documents or tokens that there are of each group, of documents no longer than its
            cap.

    Raises:
        SettingsError: a group has less than its floor, the floors are more than the budget (small
            budgets, by rounding), or the caps leave less.
    """
    unit = "tokens" if selection.tokens is not None else "documents"
    bounds = {name: group_bounds(selection, total, name) for name in found}
    least = 0
    for limit in selection.limits:
        if limit.value is None:
            continue
        due, there = round(limit.floor * total), found.get(limit.value, 0)
        least += due
        if there < due:
            raise SettingsError(
                f"selection.limits: the floor of {limit.column} {limit.value} asks for "
                f"{due} {unit}, only {there} are left of it; lower the floor"
            )
    if least > total:
        raise SettingsError(
            f"selection.limits: the floors add up to {least} {unit}, {total} are to be kept; lower "
            "them"
        )
    caps = {name: bound.cap for name, bound in bounds.items() if bound is not None}
    most = sum(min(there, caps.get(name, there)) for name, there in found.items())
    if most < total:
        raise too_little(selection, most, total, caps)


def too_little(
    selection: Selection, most: int, total: int, limited: Collection[str]
) -> SettingsError:
    """The error of limits that leave less than the budget."""
    unit = "tokens" if selection.tokens is not None else "documents"
    column = selection.limits[0].column
    remedy = f"raise them, or keep {most}"
    if NO_GROUP in limited:
        remedy += f"; documents without a {column} are the group {NO_GROUP}, with a cap of its own"
    return SettingsError(
        f"selection.limits: the caps leave {most} {unit}, {total} are to be kept; {remedy}"
    )


def group_column(column: str, table: str) -> str:
    """SQL: the name of a document's group."""
    return f"coalesce({table}.\"{column}\", '{NO_GROUP}')"


def make_bounds(connection: Any, selection: Selection, total: int, table: str) -> dict[str, int]:
    """Table `bounds`: name, floor and cap of the limited groups that *table* has; caps by name.

    Args:
        connection: DuckDB.
        selection: with its limits.
        total: the budget.
        table: a table with columns name and units.

    Raises:
        SettingsError: limits cannot be kept.
    """
    names = [
        name for (name,) in connection.execute(f"SELECT DISTINCT name FROM {table}").fetchall()
    ]
    limited = {
        name: bounds
        for name in names
        if (bounds := group_bounds(selection, total, name)) is not None
    }
    rows = [(name, bounds.floor, bounds.cap) for name, bounds in limited.items()]
    schema = pa.schema([("name", pa.string()), ("floor", pa.int64()), ("cap", pa.int64())])
    given = pa.Table.from_pylist(
        [dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema
    )
    connection.register("given", given)
    connection.execute("CREATE TEMP TABLE bounds AS SELECT * FROM given")
    found = dict.fromkeys(names, 0) | {
        name: int(units)
        for name, units in connection.execute(
            f"SELECT name, sum(units) FROM {table} LEFT JOIN bounds USING (name) "
            "WHERE cap IS NULL OR units <= cap GROUP BY name"
        ).fetchall()
    }
    check_limits(selection, total, found)
    return {name: bounds.cap for name, bounds in limited.items()}
