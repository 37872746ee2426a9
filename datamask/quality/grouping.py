"""Scores normalised within groups, because a classifier may separate domains more than quality.

The result is w · within + (1 − w) · whole with w = n / (n + `SHRINKAGE`) for a group of n documents
that have the score: the scale of a small group is uncertain. Documents without a group form one.
Values are rounded to 2⁻³⁰ of their group's range and summed as integers, so that group sums are the
same on every machine, whatever other groups hold.
"""

from __future__ import annotations

from posixpath import commonpath, dirname, relpath
from typing import Any

import pyarrow as pa

from datamask.config.group import SourceGroup
from datamask.config.inputs import Quality
from datamask.config.scores import Score
from datamask.runs.run import Run
from datamask.selection.threshold import group_column
from datamask.storage.duckdb_scratch import execute, execute_with, value_at

# Chosen by experiment: docs/log.md#groups.
SHRINKAGE = 10
"""Size of a group at which its own scale has the same weight as the scale of the corpus."""
BEST_SHARE = 10
"""One tenth: the report compares the best tenth of the corpus with and without groups."""
LISTED_GROUPS = 100
LISTED_CHANGES = 50
STEPS = 2**30
"""Number of steps into which a group's range is divided for its sums."""


def group_kinds(scores: tuple[Score, ...]) -> list[str]:
    """Name the kinds of groups within which scores are compared, in their order."""
    kinds = [s.normalise_within for s in scores if s.normalise_within != "none"]
    return list(dict.fromkeys(kinds))


def favoured_kinds(quality: Quality) -> list[str]:
    """Name the kinds of groups that decide which of several copies is kept."""
    return list(dict.fromkeys(group.column for group in quality.favoured))


def standing(quality: Quality) -> str:
    """Return SQL for the place of a row s of `documents` among its copies: the lowest is kept.

    It is 0 for documents that are exempt, then 1 for the most preferred group, and so on.
    """
    near = quality.near_duplicates
    if near is None or not quality.favoured:
        return "1"
    cases = [f"WHEN {is_in(group)} THEN 0" for group in near.exempt]
    cases += [f"WHEN {is_in(group)} THEN {at}" for at, group in enumerate(near.prefer, 1)]
    return f"CASE {' '.join(cases)} ELSE {len(near.prefer) + 1} END"


def is_in(group: SourceGroup) -> str:
    """Return SQL that is true if a row s of `documents` is in a group."""
    value = group.value.replace("'", "''")
    return f"s.g_{group.column} = '{value}'"


def group_columns(connection: Any, run: Run, kinds: list[str]) -> tuple[str, str]:
    """Return SQL for columns g_<kind>, the groups of a row s of `scores`, and for their joins."""
    columns = {kind: group_column(kind, "s") for kind in kinds}
    joins = []
    if "source" in kinds:
        above = commonpath(dirname(piece.path) for piece in run.pieces)
        rows = []
        for shard, pieces in enumerate(run.shard_pieces):
            beyond = 0
            for piece in pieces:
                first, beyond = beyond, beyond + piece.rows
                folder = relpath(dirname(piece.path), above)
                rows.append({"shard": shard, "first": first, "beyond": beyond, "folder": folder})
        execute_with(
            connection, pa.Table.from_pylist(rows), "CREATE TABLE folders AS FROM arriving"
        )
        columns["source"] = "folders.folder"
        joins += ["JOIN folders ON folders.shard = s.shard AND row >= first AND row < beyond"]
    return "".join(f", {columns[kind]} AS g_{kind}" for kind in kinds), " ".join(joins)


def create_groups(connection: Any, index: int, score: Score, value: str) -> None:
    """Make tables `group<index>`, sizes and scales of groups, and `within<index>`, ranks.

    *value* is SQL: the raw value of a row of `documents` (named s). Ranks are made for
    normalisation `rank` alone.
    """
    execute(
        connection,
        f"CREATE TABLE members{index} AS SELECT g_{score.normalise_within} AS name, {value} AS "
        f"value, count(*) AS equal FROM documents s WHERE {value} IS NOT NULL GROUP BY ALL",
    )
    execute(
        connection,
        f"CREATE TABLE group{index} AS SELECT name, n::BIGINT AS n, low, high, "
        "total::DOUBLE / n AS mean, "
        "sqrt((n * squares - total * total)::DOUBLE / (n * n)::DOUBLE) AS deviation FROM ("
        "SELECT name, sum(equal)::HUGEINT AS n, any_value(low) AS low, any_value(high) AS high, "
        "sum(q * equal)::HUGEINT AS total, sum(q * q * equal)::HUGEINT AS squares FROM "
        f"(SELECT *, coalesce(round((value - low) / nullif(high - low, 0) * {STEPS}), 0)::HUGEINT "
        f"AS q FROM members{index} JOIN (SELECT name, min(value) AS low, max(value) AS high FROM "
        f"members{index} GROUP BY name) USING (name)) GROUP BY name)",
    )
    if score.normalisation == "rank":
        execute(
            connection,
            f"CREATE TABLE within{index} AS SELECT name, value, (2 * sum(equal) OVER "
            "(PARTITION BY name ORDER BY value ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) "
            "- equal - 1)::DOUBLE / (2 * sum(equal) OVER (PARTITION BY name))::DOUBLE AS share "
            f"FROM members{index}",
        )
    execute(connection, f"DROP TABLE members{index}")


def mixed_with_groups(index: int, score: Score, value: str, whole: str) -> tuple[str, list[str]]:
    """Return SQL for a score: normalised within groups, mixed with the one over the corpus.

    The second text has the joins that this needs.
    *value* and *whole* are SQL for the raw and the normalised value of a row of `documents` (named
    s). A score that is constant in the group is 0 there.
    """
    group, name = f"group{index}", f"s.g_{score.normalise_within}"
    joins = [f"LEFT JOIN {group} ON {group}.name = {name}"]
    share = f"coalesce(({value} - {group}.low) / nullif({group}.high - {group}.low, 0), 0)"
    if score.normalisation == "rank":
        within = f"within{index}.share"
        joins.append(
            f"LEFT JOIN within{index} ON within{index}.name = {name} "
            f"AND within{index}.value = {value}"
        )
    elif score.normalisation == "z-score":
        above = f"({share} * {STEPS} - {group}.mean)"
        within = f"coalesce({above} / nullif({group}.deviation, 0), 0)"
    else:
        within = share
    weight = f"({group}.n::DOUBLE / ({group}.n + {SHRINKAGE})::DOUBLE)"
    return f"({weight} * {within} + (1 - {weight}) * ({whole}))", joins


def group_shares(connection: Any, kinds: list[str]) -> list[dict[str, Any]]:
    """Count each group's documents in the best tenth, with and without normalisation in groups.

    The view `result` has quality, whole_quality (without groups), dropped and g_<kind>.

    Returns:
        For each kind, the largest groups and those with the largest change: `kind`, `name`,
        `documents`, and its documents in the best tenth without (`best_whole`) and with
        (`best_within`) groups.
    """
    compared = "(dropped IS NULL OR dropped = 'pruned')"
    number = execute(connection, f"SELECT count(*) FROM result WHERE {compared}")[0][0]
    border = number - 1 - number // BEST_SHARE
    best = {
        name: value_at(connection, name, f"result WHERE {compared}", border)
        for name in ("quality", "whole_quality")
    }
    groups: list[dict[str, Any]] = []
    for kind in kinds:
        listed = connection.sql(
            f"SELECT '{kind}' AS kind, * FROM (SELECT g_{kind} AS name, count(*) AS documents, "
            "count(*) FILTER (whole_quality > $whole_quality) AS best_whole, "
            "count(*) FILTER (quality > $quality) AS best_within "
            f"FROM result WHERE {compared} GROUP BY g_{kind}) "
            f"QUALIFY row_number() OVER (ORDER BY documents DESC, name) <= {LISTED_GROUPS} OR "
            "row_number() OVER (ORDER BY abs(best_within - best_whole) DESC, name) <= "
            f"{LISTED_CHANGES} ORDER BY best_within - best_whole DESC, name",
            params=best,
        )
        groups += listed.to_arrow_table().to_pylist()
    return groups
