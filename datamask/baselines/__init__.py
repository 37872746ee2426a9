"""Comparators for mask learning, selectable as `selection.method` to run ablations.

Each answers with logits: the chosen documents have the highest, in the order of choice, so that the
top S of the logits are the selection and everything downstream is the same as for a learned mask.
The greedy methods pursue the run's own objective, terms, weights and scales.
`quality_minus_density` weighs quality and density by lambda, each in units of its deviation over
documents. `random`, `top_quality` and `semdedup` know no objective; all are judged by the run's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from datamask.config.selection import Selection
from datamask.errors import SettingsError
from datamask.objectives.facility_location import FacilityLocation
from datamask.objectives.weighted import WeightedTerm

GREEDY = ("greedy", "lazy_greedy", "stochastic_greedy")


def check_method(selection: Selection, terms: Sequence[WeightedTerm]) -> None:
    """Whether the method pursues all of the objective, as far as it pursues any.

    Raises:
        SettingsError: it would ignore a term that has a weight.
    """
    from datamask.baselines import greedy

    if selection.method in GREEDY:
        greedy.check(selection.method, terms)
    if selection.method == "quality_minus_density" and any(term.weight for term in terms[2:]):
        raise SettingsError(
            "selection.more_terms: quality_minus_density weighs quality and density alone; leave "
            "them out, "
            "or use method mask or greedy"
        )


def select(
    features: np.ndarray,
    quality: np.ndarray,
    num_selected: int,
    selection: Selection,
    terms: Sequence[WeightedTerm],
    *,
    seed: int,
    ids: Sequence[str] | np.ndarray | None = None,
    scores: Mapping[str, np.ndarray] | None = None,
) -> np.ndarray:
    """Choose documents by a comparator.

    Args:
        features: N x D, float16 or float32, unit rows.
        quality: shape N, finite.
        num_selected: S, in [0, N].
        selection: its method, and lambda for `quality_minus_density`.
        terms: the objective, weighted and scaled, for the greedy methods.
        seed: for the methods that draw.
        ids: shape N; they settle ties where a method has any. Rows do if not given.
        scores: further scores by name, shape N, for terms that read them.

    Returns:
        float32 logits, shape N.

    Raises:
        SettingsError: the method does not serve the objective.
    """
    from datamask.baselines import density, greedy, semdedup

    # Texts as objects: an array of fixed width would pad them to the longest, and cut NULs off.
    names = np.arange(len(features)) if ids is None else np.asarray(ids, object)
    order = np.argsort(names, kind="stable")
    # Ties fall to the better quality, then to the id: both by working in that order throughout.
    order = order[np.argsort(-np.asarray(quality, np.float64)[order], kind="stable")]
    given, ranking = features[order], np.asarray(quality, np.float64)[order]
    method = selection.method
    check_method(selection, terms)
    generator = np.random.Generator(np.random.PCG64(seed))
    if method == "random":
        ranked = generator.permutation(len(given)).astype(np.float64)
    elif method == "top_quality":
        ranked = ranking
    elif method == "quality_minus_density":
        ranked = density.quality_minus_density(given, ranking, selection.quality_weight)
    elif method == "semdedup":
        ranked = semdedup.representatives(given, ranking, num_selected, seed)
    else:
        if method == "greedy":
            named = {name: np.asarray(score)[order] for name, score in (scores or {}).items()}
            chosen = greedy.choose(given, ranking, named, num_selected, terms)
        else:
            probes = features[_probes(terms, len(features))]
            drawn = generator if method == "stochastic_greedy" else None
            chosen = greedy.choose_covering(given, probes, ranking, num_selected, terms, drawn)
        ranked = np.zeros(len(given))
        ranked[chosen] = np.arange(len(chosen), 0, -1)
    logits = np.empty(len(given), dtype=np.float32)
    # Ranks, not values: float32 would merge scores that differ in float64.
    place = np.argsort(np.argsort(-ranked, kind="stable"), kind="stable")
    logits[order] = -place.astype(np.float32) / max(len(given), 1)
    return logits


def _probes(terms: Sequence[WeightedTerm], num_documents: int) -> np.ndarray:
    for term in terms:
        if isinstance(term.objective, FacilityLocation):
            return term.objective.probe_rows(num_documents).numpy()
    return np.zeros(0, np.int64)
