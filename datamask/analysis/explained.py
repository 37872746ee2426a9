"""Measure how well the group of a document alone predicts a score, without its text.

A score that only separates domains selects domains. For each score and each kind of group (dump,
language, domain, `source.groups`, topic, and length in half octaves of characters), over the
documents that could be selected, or a sample of them:

- `auc`: how well the group separates the best tenth by the score from the others: 0.5 is chance, 1
  is certain. A group's prediction is the fraction of its documents in the best tenth,
  cross-validated in `FOLDS` parts by a hash of the id and, in small groups, moved towards the
  fraction over all (`PRIOR`). The AUC is exact within each part, and summed over the parts.
- `eta_squared`: the fraction of the score's variance that is between groups, adjusted for their
  number as R² is: near 0 if groups are random.
- `constant_groups`: groups of `PRIOR` documents or more in which the score has one value, and
  their `constant_documents`.

Sums add whole numbers, so their order does not matter: scores are rounded to 2⁻³⁰ of their range.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any

import pyarrow as pa

from datamask.config.selection import NO_GROUP
from datamask.storage.duckdb_scratch import execute, execute_with, is_sampled, value_at

MOST_DOCUMENTS = 2_000_000
"""Minimum number of documents that are compared in larger corpora; less than twice as many are
(docs/log.md#groups)."""

FOLDS, PRIOR, BEST_SHARE, STEPS = 5, 10, 10, 2**30
"""Number of folds; number of documents with which the fraction over all counts in a group's
prediction; one tenth; steps of a score's range (docs/log.md#groups)."""

_CELLS = f"""
CREATE TEMP TABLE cells AS WITH long AS (
    UNPIVOT compared ON {{scores}} INTO NAME score VALUE value
)
SELECT score, CASE {{cases}} END AS kind, coalesce({{kinds}}) AS name, fold, count(*) AS n,
    count(*) FILTER (value > border) AS best, sum(q)::HUGEINT AS total,
    sum(q * q)::HUGEINT AS squares, min(q) AS low, max(q) AS high
FROM (SELECT *, coalesce(round((value - least) / nullif(largest - least, 0) * {STEPS}), 0)::BIGINT
    AS q FROM long JOIN ranges USING (score))
GROUP BY score, fold, GROUPING SETS ({{kinds}})
HAVING name IS NOT NULL
"""

_EXPLAINED = f"""
WITH groups AS (
    SELECT score, kind, name, sum(n) AS n, sum(best) AS best, sum(total)::HUGEINT AS total,
        sum(squares)::HUGEINT AS squares, min(low) = max(high) AND sum(n) >= {PRIOR} AS constant
    FROM cells GROUP BY score, kind, name
), folds AS (
    SELECT score, kind, fold, sum(n) AS n, sum(best) AS best,
        sum(sum(n)) OVER every - sum(n) AS other_n, sum(sum(best)) OVER every - sum(best) AS other
    FROM cells GROUP BY score, kind, fold WINDOW every AS (PARTITION BY score, kind)
), predicted AS (
    SELECT c.score, c.kind, c.fold, sum(c.best)::HUGEINT AS best,
        sum(c.n - c.best)::HUGEINT AS rest,
        (g.best - c.best + {PRIOR} * f.other / f.other_n) / (g.n - c.n + {PRIOR}) AS prediction
    FROM cells c JOIN groups g USING (score, kind, name) JOIN folds f USING (score, kind, fold)
    WHERE f.other_n > 0 GROUP BY c.score, c.kind, c.fold, prediction
), ranked AS (
    SELECT *, best * (2 * sum(rest) OVER (PARTITION BY score, kind, fold ORDER BY prediction
        ROWS UNBOUNDED PRECEDING) - rest) AS pairs FROM predicted
), won AS (
    SELECT score, kind, sum(pairs)::DOUBLE AS won FROM ranked GROUP BY score, kind
), most AS (
    SELECT score, kind, sum(2 * best * (n - best))::DOUBLE AS pairs FROM folds
    WHERE other_n > 0 GROUP BY score, kind
), sums AS (
    SELECT score, kind, sum(n)::HUGEINT AS n, count(*) AS groups,
        (sum(squares) - sum(total) * sum(total) // sum(n))::DOUBLE AS whole,
        (sum(squares) - sum(total * total // n))::DOUBLE AS inside,
        count(*) FILTER (constant) AS constant_groups,
        coalesce(sum(n) FILTER (constant), 0) AS constant_documents
    FROM groups GROUP BY score, kind HAVING count(*) > 1
)
SELECT score, kind, n::BIGINT AS documents, groups, round(won / nullif(pairs, 0), 4) AS auc,
    round(1 - (inside / nullif(n - groups, 0)) / nullif(whole / (n - 1), 0), 4) AS eta_squared,
    constant_groups, constant_documents::BIGINT AS constant_documents
FROM sums LEFT JOIN won USING (score, kind) LEFT JOIN most USING (score, kind)
ORDER BY auc DESC NULLS LAST, score, kind
"""


def explained(
    connection: Any, documents: str, number: int, scores: Sequence[str], of_source: Sequence[str]
) -> list[dict[str, Any]]:
    """Return rows of table `score_explained`, largest `auc` first, of kinds with two groups.

    *documents* is SQL for FROM, up to a condition in WHERE, and *number* counts them; *of_source*
    are the kinds of groups that the source knows.
    """
    every = [*(f'"{kind}"' for kind in of_source), "topic", "length"]
    named = ", ".join(f'"{score}"' for score in scores)
    execute(
        connection,
        f"CREATE TEMP VIEW compared AS SELECT {named}, {', '.join(every[:-2])}, "
        f"nullif(topic, '{NO_GROUP}') AS topic, "
        "floor(2 * log2(nullif(characters, 0)))::VARCHAR AS length, "
        # This half of the hash does not decide what is sampled.
        f"(md5_number(id) & {2**64 - 1}::UHUGEINT)::UBIGINT % {FOLDS} AS fold FROM {documents} "
        f"AND (dropped IS NULL OR dropped = 'pruned') AND {is_sampled(number, MOST_DOCUMENTS)}",
    )
    several = ", ".join(f"min({kind}) < max({kind})" for kind in every)
    [has_several] = execute(connection, f"SELECT {several} FROM compared")
    kinds = list(compress(every, has_several))
    ranges = [_range(connection, score) for score in scores] if kinds else []
    table = pa.Table.from_pylist([row for row in ranges if row])
    if not table.num_rows:
        return []
    execute_with(connection, table, "CREATE TEMP TABLE ranges AS FROM arriving")
    cases = " ".join(f"WHEN grouping({kind}) = 0 THEN '{kind.strip(chr(34))}'" for kind in kinds)
    execute(connection, _CELLS.format(scores=named, cases=cases, kinds=", ".join(kinds)))
    rows: list[dict[str, Any]] = connection.sql(_EXPLAINED).to_arrow_table().to_pylist()
    return rows


def _range(connection: Any, score: str) -> dict[str, Any]:
    """Return a score's least and largest value, and the largest below the best tenth; or {}."""
    rows = f'compared WHERE "{score}" IS NOT NULL'
    [[number, least, largest]] = execute(
        connection, f'SELECT count(*), min("{score}"), max("{score}") FROM {rows}'
    )
    if not number:
        return {}
    border = value_at(connection, f'"{score}"', rows, number - 1 - number // BEST_SHARE)
    return {"score": score, "least": least, "largest": largest, "border": border}
