"""Comparators for mask learning: the other values of `selection.method`, for ablations.

Each returns logits that rank the chosen documents first, in the order of choice, so everything
downstream is the same as for a learned mask. The greedy methods maximise quality and metric with
the run's weights and scales. `random`, `top_quality`, `semdedup`, `d4` and `cluster_balanced` have
no objective. The run's objective measures the result of every method.

Methods get documents in the order of falling quality: features N x D, float32, unit rows. They
return values that rank these (float64, shape N), the first of equal values first, or the chosen
rows in the order of choice.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from datamask.baselines import greedy
from datamask.baselines.clustered import cluster_balanced, d4, semdedup
from datamask.config.selection import GREEDY, Selection
from datamask.errors import SettingsError
from datamask.objectives.weighted import WeightedTerm

CLUSTERING = {"semdedup": semdedup, "d4": d4, "cluster_balanced": cluster_balanced}


def check_method(selection: Selection, terms: Sequence[WeightedTerm]) -> None:
    """Check that the method maximises the whole objective, if it maximises any.

    Raises:
        SettingsError: it would ignore the metric or a further term with a weight.
    """
    if selection.metric not in GREEDY.get(selection.method, (selection.metric,)):
        raise SettingsError(
            f"selection.method: {selection.method} does not serve {selection.metric}; greedy "
            "serves pairwise and disf, lazy_greedy serves facility_location"
        )
    if selection.method in GREEDY and any(term.weight for term in terms[2:]):
        raise SettingsError(
            f"selection.more_terms: {selection.method} has no further terms; leave them out, or "
            "use method mask"
        )


def select(
    features: np.ndarray,
    quality: np.ndarray,
    num_selected: int,
    selection: Selection,
    terms: Sequence[WeightedTerm],
    *,
    seed: int,
    id_order: np.ndarray | None = None,
) -> np.ndarray:
    """Rank documents by a comparator; float32 logits, shape N.

    Arguments are as in `learning.learner.learn_mask`; *terms* are the objective, weighted and
    scaled, for the greedy methods, and *id_order* the ranks of the documents by id, by default
    their rows.

    Raises:
        SettingsError: the method does not support the objective.
    """
    check_method(selection, terms)
    if not len(features):
        return np.zeros(0, np.float32)
    order = np.lexsort((np.arange(len(features)) if id_order is None else id_order, -quality))
    method, ranking = selection.method, np.asarray(quality, np.float64)[order]
    needed = order[:0] if method in ("random", "top_quality") else order
    given = features[needed].astype(np.float32)
    if method == "random":
        generator = np.random.Generator(np.random.PCG64(seed))
        ranked = generator.permutation(len(order)).astype(np.float64)
    elif method == "top_quality":
        ranked = ranking
    elif method in CLUSTERING:
        ranked = CLUSTERING[method](given, num_selected, seed)
    else:
        choose = greedy.choose if method == "greedy" else greedy.choose_covering
        chosen = choose(given, ranking, num_selected, terms)
        ranked = np.zeros(len(given))
        ranked[chosen] = np.arange(len(chosen), 0, -1)
    # Ranks, not values: float32 would merge scores that differ in float64.
    rank = np.argsort(np.argsort(-ranked, kind="stable"), kind="stable")
    rank[order] = rank.copy()
    return -rank.astype(np.float32) / len(order)
