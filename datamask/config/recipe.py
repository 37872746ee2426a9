"""The recommended recipe, filter then cover: values of settings that are not given.

docs/evidence.md compares it with others. `Settings` fills the values in.
"""

from __future__ import annotations

METRIC = "facility_location"
"""Metric where shards learn by themselves: it represents the documents that survive pruning,
without their repetitions. DiSF and pairwise similarity prefer outliers."""

CORPUS_METRIC = "disf"
"""Metric where it must be a function of sums (scope `corpus`, mask models, method `greedy`);
facility location is not one."""

PRUNE_FRACTION = 0.5
"""Fraction that scores of the user's own prune."""

MOST_PRUNED = 0.7
"""Largest fraction that a score from examples may prune (`following`). A score that separates a
narrow goal this well still leaves several times the usual budget."""

HEURISTIC_PRUNE_FRACTION = 0.4
"""Fraction that the built-in heuristic alone prunes; it separates noise from text less well."""

QUALITY_WEIGHT = 0.3
"""Lambda after pruning by scores of the user's own: surviving documents are not equally good, and
the best of them repeat each other."""

HEURISTIC_QUALITY_WEIGHT = 0.0
"""Lambda with the built-in heuristic alone: the documents that it ranks highest train worse models
than random documents."""

UNPRUNED_QUALITY_WEIGHT = 0.5
"""Lambda where quality has pruned nothing."""


def following(auc: float) -> tuple[float, float]:
    """Compute the fraction to prune and lambda from the AUC of a score of examples.

    If a fraction p of random documents is wanted too, a perfect score separates examples from them
    with an AUC of 1 - p / 2. So t = 2 AUC - 1 is at most the fraction that is unwanted, and small
    where the score hardly separates them. The fraction to prune is min(0.7, t), and lambda is t
    squared: chosen by a comparison (docs/evidence.md).

    Args:
        auc: of examples against random documents, cross-validated; below 0.5 counts as 0.5.
    """
    separated = max(0.0, 2 * auc - 1)
    return round(min(MOST_PRUNED, separated), 2), round(separated**2, 2)


def wanted_share(auc: float) -> str:
    """Say how much of the source can be of the wanted kind, and ask the user whether that is so.

    If a fraction p of the random documents is wanted, no score has an AUC above 1 - p / 2.
    """
    most = min(1.0, 2 - 2 * auc)
    return (
        f"By this score, at most 2 - 2 AUC = {most:.0%} of the source is of the wanted kind: is "
        "that so? If more is, the examples show a part of what you want, and the rest is pruned."
    )
