"""Scores normalised within groups, because a classifier may separate domains more than quality.

A score is normalised within the document's group and over the whole corpus, and the result is
w · within + (1 − w) · whole with w = n / (n + `SHRINKAGE`) for a group of n documents that have the
score. The scale of a small group is uncertain, so its documents are compared mostly with the whole
corpus. The order within a group does not change. Documents without a group form one group.

Group sums are exact, and so the same on every machine: values are rounded to 2⁻³⁰ of the corpus's
range and summed as integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from posixpath import commonpath, relpath
from typing import Any

from datamask.config.inputs import Score
from datamask.runs.run import Run
from datamask.selection.limits import group_column

# See docs/log.md#groups.
SHRINKAGE = 10
"""Size of a group at which its own scale has the same weight as that of the corpus."""
BEST_SHARE = 10
"""One tenth: the report compares the best tenth of the corpus with and without groups."""
LISTED_GROUPS = 100
LISTED_CHANGES = 50
STEPS = 2**30
"""Number of steps into which the corpus's range is divided for group sums."""


def group_kinds(scores: tuple[Score, ...]) -> list[str]:
    """The kinds of groups within which scores are compared, in the order of the scores."""
    found = [s.normalise_within for s in scores if s.normalise_within != "none"]
    return list(dict.fromkeys(found))


def group_expressions(run: Run, shard: int) -> tuple[str, list[str]]:
    """SQL expressions of a shard's groups, each after a comma, and their parameters."""
    parts, parameters = [], []
    for kind in group_kinds(run.settings.scores):
        if kind != "source":
            parts.append(f", {group_column(kind, 's')}")
            continue
        folders = {str(PurePosixPath(piece.path).parent) for piece in run.pieces}
        above, cases, last = commonpath(folders), [], 0
        for piece in run.shard_pieces[shard]:
            last += piece.rows
            cases.append(f"WHEN row < {last} THEN CAST(? AS VARCHAR)")
            parameters.append(relpath(PurePosixPath(piece.path).parent, above))
        parts.append(f", CASE {' '.join(cases)} END")
    return "".join(parts), parameters


@dataclass(frozen=True, slots=True)
class WithinGroups:
    """SQL that normalises a score within groups.

    Args:
        value: expression of the value normalised within the group; null if the score is.
        weight: expression of its weight; the corpus-wide value has the rest.
        joins: joins of the tables that it reads with table `raw`.
    """

    value: str
    weight: str
    joins: list[str]


def normalise_within(connection: Any, i: int, score: Score) -> WithinGroups:
    """Create table `within<i>` (size and scale of each group) and, for ranks, `share<i>`.

    Args:
        connection: with table `raw`.
        i: index of the score; its values are v<i>.
        score: with groups and a normalisation.
    """
    group = f"g_{score.normalise_within}"
    lowest = f"(SELECT min(v{i}) FROM raw)"
    extent = f"(SELECT nullif(max(v{i}) - min(v{i}), 0) FROM raw)"
    place = f"(raw.v{i} - {lowest}) / {extent} * {STEPS}"
    connection.execute(
        f"CREATE TABLE within{i} AS SELECT *, total::DOUBLE / n AS mean, "
        "sqrt((n * squares - total * total)::DOUBLE / (n * n)::DOUBLE) AS deviation FROM ("
        f"SELECT {group} AS name, count(*)::HUGEINT AS n, min(v{i}) AS low, max(v{i}) AS high, "
        "sum(q)::HUGEINT AS total, sum(q * q)::HUGEINT AS squares FROM "
        f"(SELECT {group}, v{i}, coalesce(round({place}), 0)::HUGEINT AS q "
        f"FROM raw WHERE v{i} IS NOT NULL) GROUP BY {group})"
    ).fetchall()
    joins = [f"LEFT JOIN within{i} ON raw.{group} = within{i}.name"]
    weight = f"within{i}.n::DOUBLE / (within{i}.n + {SHRINKAGE})::DOUBLE"
    if score.normalisation == "z-score":
        scaled = f"(coalesce({place}, 0) - within{i}.mean) / nullif(within{i}.deviation, 0)"
    elif score.normalisation == "min-max":
        scaled = f"(raw.v{i} - within{i}.low) / nullif(within{i}.high - within{i}.low, 0)"
    else:
        connection.execute(
            f"CREATE TABLE share{i} AS SELECT name, value, (2 * upto - equal - 1)::DOUBLE / "
            "(2 * sum(equal) OVER (PARTITION BY name))::DOUBLE AS share FROM (SELECT *, sum(equal) "
            "OVER (PARTITION BY name ORDER BY value ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT "
            f"ROW) AS upto FROM (SELECT {group} AS name, v{i} AS value, count(*) AS equal FROM raw "
            f"WHERE v{i} IS NOT NULL GROUP BY ALL))"
        ).fetchall()
        joins.append(
            f"LEFT JOIN share{i} ON raw.{group} = share{i}.name AND raw.v{i} = share{i}.value"
        )
        scaled = f"share{i}.share"
    # A score that is constant in the group is 0 there.
    value = f"CASE WHEN raw.v{i} IS NOT NULL THEN coalesce({scaled}, 0) END"
    return WithinGroups(value, weight, joins)


def group_shares(connection: Any, kinds: list[str]) -> list[dict[str, Any]]:
    """Count each group's documents in the best tenth, with and without normalisation in groups.

    Args:
        connection: with view `result`: quality, whole_quality (without groups), dropped, g_<kind>.
        kinds: kinds of groups.

    Returns:
        For each kind, the largest groups and those with the largest change: `kind`, `name`,
        `documents`, and its documents in the best tenth without (`best_whole`) and with
        (`best_within`) groups.
    """
    compared = "(dropped IS NULL OR dropped = 'pruned')"
    connection.execute(
        "CREATE TABLE best AS SELECT "
        + ", ".join(
            f"(SELECT {column} FROM result WHERE {compared} ORDER BY {column} DESC LIMIT 1 OFFSET "
            f"(SELECT count(*) // {BEST_SHARE} FROM result WHERE {compared})) AS {column}"
            for column in ("quality", "whole_quality")
        )
    ).fetchall()
    found: list[dict[str, Any]] = []
    for kind in kinds:
        rows = connection.execute(
            f"SELECT * FROM (SELECT g_{kind} AS name, count(*) AS documents, "
            "count(*) FILTER (r.whole_quality > best.whole_quality) AS whole, "
            "count(*) FILTER (r.quality > best.quality) AS within "
            f"FROM result r, best WHERE {compared} GROUP BY g_{kind}) "
            "QUALIFY row_number() OVER (ORDER BY documents DESC, name) <= "
            f"{LISTED_GROUPS} OR row_number() OVER (ORDER BY abs(within - whole) DESC, name) <= "
            f"{LISTED_CHANGES} ORDER BY within - whole DESC, name"
        ).fetchall()
        keys = ("name", "documents", "best_whole", "best_within")
        found += [{"kind": kind, **dict(zip(keys, row, strict=True))} for row in rows]
    return found
