"""The terms of a run's objective, made from the files that planning saw."""

from __future__ import annotations

from datamask.objectives.weighted import WeightedTerm, build_terms
from datamask.runs.run import Run


def terms_of(run: Run) -> tuple[WeightedTerm, ...]:
    """The terms of the objective.

    Raises:
        InputError: a term's file has changed since the run was planned.
        SettingsError: a term cannot be made.
    """
    planned = {}
    for term in run.settings.selection.more_terms:
        # An arm of an evaluation may select by terms that the run does not have.
        for key in (f"learning:{term.path}", f"arms:{term.path}"):
            if key in run.pinned_revisions:
                planned[term.path] = run.pinned_revisions[key]
    return build_terms(run.settings.selection, planned)
