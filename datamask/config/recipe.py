"""The recommended recipe, filter then cover: values of settings that are not given.

docs/evidence.md compares it with others. `Settings` fills the values in.
"""

from __future__ import annotations

METRIC = "facility_location"
"""Metric where shards learn by themselves: it represents the documents that pruning leaves, without
their repetitions. DiSF and pairwise similarity prefer outliers."""

CORPUS_METRIC = "disf"
"""Metric where it must be a function of sums, which facility location is not: scope `corpus`, mask
models, method `greedy`."""

PRUNE_FRACTION = 0.5
"""Share of texts that is pruned by scores of the user's own."""

MOST_PRUNED = 0.7
"""Most that is pruned by a score from examples (`following`). A score that separates a narrow goal
this well still leaves several times the usual budget."""

HEURISTIC_PRUNE_FRACTION = 0.4
"""Share that is pruned by the built-in heuristic alone, which tells noise from text less well."""

QUALITY_WEIGHT = 0.3
"""Lambda after pruning by scores of the user's own: documents that are left are not equally good,
and the best of them repeat each other."""

HEURISTIC_QUALITY_WEIGHT = 0.0
"""Lambda with the built-in heuristic alone: what it ranks highest trains worse models than random
documents."""

UNPRUNED_QUALITY_WEIGHT = 0.5
"""Lambda where quality has pruned nothing."""


def following(auc: float) -> tuple[float, float]:
    """The share to prune and lambda, to two decimals, where a score of examples decides them.

    If a share p of random documents is of the wanted kind too, a perfect score separates examples
    from them with an AUC of 1 - p / 2. So t = 2 AUC - 1 is at most the share that is not wanted,
    and small where the score hardly separates them. The share to prune is min(0.7, t), and lambda
    is t squared: chosen by a comparison (docs/evidence.md).

    Args:
        auc: of examples and random documents, cross-validated; below 0.5 counts as 0.5.
    """
    separated = max(0.0, 2 * auc - 1)
    return round(min(MOST_PRUNED, separated), 2), round(separated**2, 2)


def wanted_share(auc: float) -> str:
    """What the AUC of examples and random documents says of the source, as a question.

    If a share p of the random documents is of the wanted kind, no score has an AUC above 1 - p / 2.
    """
    most = min(1.0, 2 - 2 * auc)
    return (
        f"By this score, at most 2 - 2 AUC = {most:.0%} of the source is of the wanted kind: is "
        "that so? If more is, the examples show a part of what you want, and the rest is pruned."
    )
