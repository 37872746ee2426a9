"""The terms of a run's objective, and the scores that they read.

An objective that balances groups (`objectives/groups.py`) reads indicators. One such as
`language=en` is 1 for the documents of that group and 0 for the others, so that its sum over a
selection counts them. Indicators travel like quality scores: through the learner's moments and the
sums that shards exchange.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datamask.config.selection import NO_GROUP, Selection
from datamask.errors import CorruptFileError
from datamask.runs.files import read_columns
from datamask.runs.run import Run

if TYPE_CHECKING:
    from datamask.objectives.weighted import WeightedTerm


def check_rows(run: Run, stage: str, shard: int, number: int) -> None:
    """Check that a stage wrote as many rows of a shard as there are documents left.

    Raises:
        CorruptFileError: there are more or fewer.
    """
    rows = run.receipt(stage, shard).rows
    if rows != number:
        raise CorruptFileError(
            f"{run.path(stage, shard)}: {rows} documents, but {run.quality_path(shard)} has "
            f"{number}; delete it and relaunch"
        )


def terms_of(run: Run) -> tuple[WeightedTerm, ...]:
    """The terms of the objective.

    Raises:
        InputError: a term's file has changed since the run was planned.
        SettingsError: a term cannot be made.
    """
    from datamask.objectives.weighted import build_terms  # imports torch

    planned = {}
    for term in run.settings.selection.more_terms:
        # An arm of an evaluation may select by terms that the run does not have.
        for key in (f"learning:{term.path}", f"arms:{term.path}"):
            if key in run.pinned_revisions:
                planned[term.path] = run.pinned_revisions[key]
    return build_terms(run.settings.selection, planned)


def indicator_names(selection: Selection) -> tuple[str, ...]:
    """Names of the indicators that the objective reads, in the order of its terms."""
    if not (selection.more_terms or selection.has_custom_terms):
        return ()
    from datamask.objectives.groups import GroupBalance  # these import torch
    from datamask.objectives.weighted import build_terms

    terms = [term.objective for term in build_terms(selection)]
    names = [name for term in terms if isinstance(term, GroupBalance) for name in term.indicators]
    return tuple(dict.fromkeys(names))


def score_names(run: Run) -> list[str]:
    """Names of all scores that the learner sees: quality scores, then indicators."""
    names = [score.name for score in run.settings.scores]
    return [*names, *indicator_names(run.settings.selection)]


def read_groups(run: Run, shard: int, column: str, rows: pa.ChunkedArray) -> pa.ChunkedArray:
    """The group of each document of a shard that survived pruning; text, shape N.

    Args:
        run: the run.
        shard: the shard.
        column: dump, language, domain or topic.
        rows: the documents' rows in the shard.
    """
    if column != "topic":
        groups = read_columns(run.path("scores", shard), [column])[column].take(rows)
        return pc.fill_null(groups, NO_GROUP)
    check_rows(run, "topics", shard, len(rows))
    return read_columns(run.path("topics", shard), ["topic"])["topic"]


def read_indicators(run: Run, shard: int, rows: pa.ChunkedArray) -> dict[str, np.ndarray]:
    """The indicators of a shard's documents, by their rows as in `read_groups`.

    Returns:
        0 and 1 by name, float32.
    """
    names = indicator_names(run.settings.selection)
    if not names:
        return {}
    columns = {name.partition("=")[0] for name in names}
    named = sorted(columns - {"length"})
    groups = {column: read_groups(run, shard, column, rows).to_numpy() for column in named}
    if "length" in columns:
        edges = run.receipt("quality", shard).metrics["length_edges"]
        table = read_columns(run.path("scores", shard), ["characters"]).take(rows)
        bins = np.searchsorted(edges, table["characters"].to_numpy(), side="right")
        groups["length"] = bins.astype(str)
    indicators = {}
    for name in names:
        column, _, group = name.partition("=")
        indicators[name] = (groups[column] == group).astype(np.float32)
    return indicators
