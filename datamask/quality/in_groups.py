"""Stage `scores_in_groups`: how well scores from examples order the texts inside each group.

One AUC over all documents hides that a score knows nothing of code: it can be high because the
score separates code from prose. So the same cross-validated predictions are compared again among
the texts of one domain, dump, language or group of the user's own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from datamask.config.compute import Compute
from datamask.config.scores import ExamplesScore
from datamask.quality.example_texts import example_groups
from datamask.quality.examples import fitted_scores
from datamask.quality.fitting import concordance
from datamask.runs.output import write_output
from datamask.runs.run import Run
from datamask.source.groups import group_columns, read_groups
from datamask.source.reading import source_schema

logger = logging.getLogger(__name__)

Row = dict[str, Any]

SCORES_IN_GROUPS = pa.schema(
    pa.field(name, kind, nullable=False)
    for kind, names in (
        (pa.string(), ("score", "kind", "name")),
        (pa.int64(), ("texts",)),
        (pa.float64(), ("auc", "low", "high")),
    )
    for name in names
)
"""`scores_in_groups.parquet`: the AUC inside groups, with the ends of its 95 % interval
(`fitting.concordance`); kind `all` has all texts."""

LEAST_APART = 50
"""Minimum number of a group's texts with the commonest label, and of its other texts. With an AUC
of 0.7, chance is then outside of the interval in 97 % of groups (docs/log.md#examples)."""

MOST_GROUPS, MOST_NAMED = 100, 5
"""Maximum number of groups of a kind with a row, the largest, and of groups that a text names
(docs/log.md#examples)."""


def judge_in_groups(run: Run, compute: Compute) -> None:
    """Write `scores_in_groups.parquet`, and warn of groups that a score does not order.

    Raises:
        InputError: a column of the examples has another type than in the source, or an expression
            of `source.groups` fails for a value.
    """
    run.receipt("example_models")
    names = ["score", "shards", "rows", "targets", "tested"]
    models = run.read_output("example_models", columns=names).to_pylist()
    source, known = run.settings.source, source_schema(run).names
    kinds = [
        kind
        for kind in source.kinds
        if kind in source.classifiers or {*group_columns(source, kind, known)} <= {*known}
    ]
    rows: list[Row] = []
    for score, model in zip(fitted_scores(run), models, strict=True):
        places = (np.array(model["shards"]), np.array(model["rows"]))
        groups = _names_of(run, score, *places, kinds, compute)
        judged = in_groups(groups, np.array(model["tested"]), np.array(model["targets"]))
        of_score = [{"score": score.name, **row} for row in judged]
        if by_chance := unordered(of_score):
            logger.warning("score %s: %s", score.name, warning_of(by_chance))
        rows += of_score
    table = pa.Table.from_pylist(rows, schema=SCORES_IN_GROUPS)
    write_output(run, "scores_in_groups", 0, table.schema, [table], {})


def _names_of(
    run: Run,
    score: ExamplesScore,
    shards: np.ndarray,
    rows: np.ndarray,
    kinds: Sequence[str],
    compute: Compute,
) -> dict[str, np.ndarray]:
    """Return the group of each text by kind; text, None without a group."""
    names = {kind: np.full(len(rows), None, object) for kind in kinds}
    for shard in np.unique(shards).tolist():
        inside = np.flatnonzero(shards == shard)
        if shard < 0:
            for kind, of_kind in example_groups(run, score, kinds, compute)[1].items():
                names[kind][inside] = np.array(of_kind, object)[rows[inside]]
            continue
        read, places = np.unique(rows[inside], return_inverse=True)
        for kind, of_kind in read_groups(run, shard, kinds, read).items():
            names[kind][inside] = np.array(of_kind, object)[places]
    return names


def in_groups(
    names: dict[str, np.ndarray], predicted: np.ndarray, labels: np.ndarray
) -> Iterator[Row]:
    """Yield the AUC of N texts, and of each group with enough texts, with its interval.

    *names* are the groups of the texts by kind; *predicted* and *labels* have the shape N.
    """
    if len(np.unique(labels)) > 1:
        yield _row("all", "all", predicted, labels)
    for kind, of_kind in names.items():
        present = np.flatnonzero([name is not None for name in of_kind])
        groups, members, sizes = np.unique(
            of_kind[present].astype(str), return_inverse=True, return_counts=True
        )
        for group in np.argsort(-sizes, kind="stable")[:MOST_GROUPS].tolist():
            rows = present[members == group]
            if len(rows) - np.unique(labels[rows], return_counts=True)[1].max() >= LEAST_APART:
                yield _row(kind, str(groups[group]), predicted[rows], labels[rows])


def _row(kind: str, name: str, predicted: np.ndarray, labels: np.ndarray) -> Row:
    auc, low, high = concordance(predicted, labels)
    return {"kind": kind, "name": name, "texts": len(labels), "auc": auc, "low": low, "high": high}


def unordered(rows: Sequence[Row]) -> list[Row]:
    """Return the groups that a score may order no better than chance: 0.5 is in the interval."""
    return [row for row in rows if row["low"] <= 0.5 and row["kind"] != "all"]


def warning_of(groups: Sequence[Row]) -> str:
    """Describe the groups that `unordered` returns, and what helps."""
    named = "; ".join(
        f"{row['kind']} {row['name']} (AUC {row['auc']:.2f}, between {row['low']:.2f} and "
        f"{row['high']:.2f}, {row['texts']:,} texts)"
        for row in groups[:MOST_NAMED]
    )
    more = f" and {len(groups) - MOST_NAMED:,} others" if len(groups) > MOST_NAMED else ""
    return (
        f"the score orders the documents of these groups no better than chance: {named}{more}. "
        "Give more examples of these groups or use another score for them; until then, "
        f"normalise_within: {groups[0]['kind']} keeps the score from favouring or dropping a group "
        "as a whole."
    )


def rows_in_groups(run: Run) -> list[Row]:
    """Read the rows of `scores_in_groups.parquet`; none without scores from examples."""
    if not fitted_scores(run):
        return []
    run.receipt("scores_in_groups")
    rows: list[Row] = run.read_output("scores_in_groups").to_pylist()
    return rows
