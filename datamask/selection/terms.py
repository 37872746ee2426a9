"""The terms of a run's objective, and the scores that they read.

An objective that balances groups (`objectives/groups.py`) reads indicators. One such as
`language=en` is 1 for the documents of that group and 0 for the others, so that its sum over a
selection counts them. Indicators travel like quality scores: through the learner's moments and the
sums that shards exchange.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from datamask.objectives.formula import indicator_names
from datamask.runs.run import Run

if TYPE_CHECKING:
    from datamask.objectives.weighted import WeightedTerm


def terms_of(run: Run) -> tuple[WeightedTerm, ...]:
    """Make the terms of the objective.

    Raises:
        InputError: a term's file has changed since the run was planned.
        SettingsError: a term cannot be made.
    """
    from datamask.objectives.weighted import build_terms  # This imports torch.

    planned = {}
    for term in run.settings.selection.more_terms:
        # An arm of an evaluation may select by terms that the run does not have.
        for key in (f"learning:{term.path}", f"arms:{term.path}"):
            if key in run.pinned_revisions:
                planned[term.path] = run.pinned_revisions[key]
    return build_terms(run.in_force.selection, planned)


def score_names(run: Run) -> list[str]:
    """Name all scores that the learner sees: quality scores, then indicators."""
    names = [score.name for score in run.settings.scores]
    return [*names, *indicator_names(run.settings.selection)]
