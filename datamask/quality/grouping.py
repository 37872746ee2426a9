"""Scores normalised within groups, because a classifier may separate domains more than quality.

A score is normalised within the document's group and over the whole corpus, and the result is
w · within + (1 − w) · whole with w = n / (n + `SHRINKAGE`) for a group of n documents that have the
score. The scale of a small group is uncertain, so its documents are compared mostly with the whole
corpus. The order within a group does not change. Documents without a group form one group.

Group sums are exact, and so the same on every machine: values are rounded to 2⁻³⁰ of their group's
range and summed as integers. What other groups hold does not matter to them.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from posixpath import commonpath, relpath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datamask.config.inputs import Score
from datamask.runs.run import Run
from datamask.selection.limits import group_column
from datamask.selection.order_statistics import column_reader, value_at
from datamask.storage.duckdb_scratch import execute

# See docs/log.md#groups.
SHRINKAGE = 10
"""Size of a group at which its own scale has the same weight as that of the corpus."""
BEST_SHARE = 10
"""One tenth: the report compares the best tenth of the corpus with and without groups."""
LISTED_GROUPS = 100
LISTED_CHANGES = 50
STEPS = 2**30
"""Number of steps into which a group's range is divided for its sums."""


def group_kinds(scores: tuple[Score, ...]) -> list[str]:
    """The kinds of groups within which scores are compared, in the order of the scores."""
    found = [s.normalise_within for s in scores if s.normalise_within != "none"]
    return list(dict.fromkeys(found))


def group_expression(run: Run, shard: int, kind: str) -> tuple[str, list[str]]:
    """SQL of the group of a row of a shard's `scores` (named s), and its parameters."""
    if kind != "source":
        return group_column(kind, "s"), []
    folders = {str(PurePosixPath(piece.path).parent) for piece in run.pieces}
    above, cases, parameters, last = commonpath(folders), [], [], 0
    for piece in run.shard_pieces[shard]:
        last += piece.rows
        cases.append(f"WHEN row < {last} THEN CAST(? AS VARCHAR)")
        parameters.append(relpath(PurePosixPath(piece.path).parent, above))
    return f"CASE {' '.join(cases)} END", parameters


def add_up_groups(connection: Any, place: int) -> None:
    """Answer `group` for each group of a shard: its size and scale over the corpus.

    The tables are `answers` and `members` (shard, name, value, equal: how many); *place* is that of
    the score in the settings.
    """
    execute(
        connection,
        "INSERT INTO answers BY NAME SELECT shard, 'group' AS kind, "
        f"{place} AS score, name, n::BIGINT AS n, low, high, total::DOUBLE / n AS mean, "
        "sqrt((n * squares - total * total)::DOUBLE / (n * n)::DOUBLE) AS deviation FROM ("
        "SELECT name, sum(equal)::HUGEINT AS n, any_value(low) AS low, any_value(high) AS high, "
        "sum(q * equal)::HUGEINT AS total, sum(q * q * equal)::HUGEINT AS squares FROM "
        f"(SELECT *, coalesce(round((value - low) / nullif(high - low, 0) * {STEPS}), 0)::HUGEINT "
        "AS q FROM members JOIN (SELECT name, min(value) AS low, max(value) AS high FROM members "
        "GROUP BY name) USING (name)) GROUP BY name) "
        "JOIN (SELECT DISTINCT shard, name FROM members) USING (name)",
    )


def rank_in_groups(connection: Any, place: int) -> None:
    """Answer `rank_in_group` for each value of a group of a shard; arguments as above."""
    execute(
        connection,
        "INSERT INTO answers BY NAME SELECT shard, 'rank_in_group' AS kind, "
        f"{place} AS score, name, value, share FROM members JOIN ("
        "SELECT name, value, (2 * upto - equal - 1)::DOUBLE / "
        "(2 * sum(equal) OVER (PARTITION BY name))::DOUBLE AS share FROM (SELECT *, sum(equal) "
        "OVER (PARTITION BY name ORDER BY value ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT "
        "ROW) AS upto FROM (SELECT name, value, sum(equal)::BIGINT AS equal FROM members "
        "GROUP BY ALL))) USING (name, value)",
    )


def mixed_with_groups(
    whole: np.ndarray,
    values: np.ndarray,
    names: pa.Array,
    answers: pa.Table,
    score: Score,
) -> np.ndarray:
    """The values of a shard normalised within groups, mixed with those of the whole corpus.

    Args:
        whole: float64, shape N, normalised over the corpus, NaN where missing.
        values: float64, shape N, raw, NaN where missing.
        names: groups, shape N.
        answers: rows `group` and `rank_in_group` of the score, sorted by kind, name and value.
        score: with groups and a normalisation.

    Returns:
        float64, shape N, NaN where missing. A score that is constant in the group is 0 there.
    """
    there = ~np.isnan(values)
    groups = answers.filter(pc.equal(answers["kind"], "group"))
    codes = pc.index_in(names.filter(pa.array(there)), groups["name"].combine_chunks())
    codes = codes.to_numpy(zero_copy_only=False)
    known = values[there]

    def of_group(column: str) -> np.ndarray:
        found: np.ndarray = groups[column].to_numpy()[codes]
        return found.astype(np.float64)

    if score.normalisation == "rank":
        ranks = answers.filter(pc.equal(answers["kind"], "rank_in_group"))
        # The answers are the distinct pairs of group and value of this shard, in this order.
        order = np.lexsort((known, codes))
        differ = (np.diff(codes[order]) != 0) | (np.diff(known[order]) != 0)
        within = np.empty(len(known))
        within[order] = ranks["share"].to_numpy()[np.append(0, np.cumsum(differ))[: len(known)]]
    else:
        extent = of_group("high") - of_group("low")
        share = np.divide(known - of_group("low"), extent, np.zeros(len(known)), where=extent != 0)
        within = share
        if score.normalisation == "z-score":
            above, unit = share * STEPS - of_group("mean"), of_group("deviation")
            within = np.divide(above, unit, out=np.zeros(len(known)), where=unit != 0)
    size = of_group("n")
    weight = size / (size + SHRINKAGE)
    mixed = whole.copy()
    mixed[there] = weight * within + (1 - weight) * whole[there]
    return mixed


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
    best = {}
    for name in ("quality", "whole_quality"):
        read = column_reader(connection, f"SELECT {name} FROM result WHERE {compared}")
        best[name] = value_at(read, number - 1 - number // BEST_SHARE)[0]
    found: list[dict[str, Any]] = []
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
        found += listed.to_arrow_table().to_pylist()
    return found
