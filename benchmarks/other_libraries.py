"""Facility location with other libraries (extra `bench`)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def apricot(features: np.ndarray, count: int) -> np.ndarray:
    """apricot-select: lazy greedy on the whole matrix of cosines.

    Returns:
        The rows that are selected, sorted.
    """
    from apricot import FacilityLocationSelection

    selector = FacilityLocationSelection(count, metric="precomputed", optimizer="lazy")
    selector.fit(_similarity(features))
    return np.sort(np.asarray(selector.ranking))


def submodlib(features: np.ndarray, count: int) -> np.ndarray:
    """submodlib: lazy greedy on the whole matrix of cosines.

    Returns:
        The rows that are selected, sorted.
    """
    from submodlib.functions.facilityLocation import FacilityLocationFunction

    function = FacilityLocationFunction(
        n=len(features),
        mode="dense",
        sijs=_similarity(features),
        separate_rep=False,
    )
    chosen = function.maximize(budget=count, optimizer="LazyGreedy", show_progress=False)
    return np.sort(np.array([row for row, _ in chosen]))


SELECTORS: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "apricot": apricot,
    "submodlib": submodlib,
}


def _similarity(features: np.ndarray) -> np.ndarray:
    vectors = np.asarray(features, np.float32)
    # apricot wants no negative value.
    similarity: np.ndarray = np.maximum(vectors @ vectors.T, 0.0)
    return similarity
