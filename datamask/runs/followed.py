"""What follows from a score's examples where it is not set: the share to prune, and lambda."""

from __future__ import annotations

from typing import Any

from datamask.config.recipe import PRUNE_FRACTION
from datamask.config.selection import Selection
from datamask.runs.run import Run


def following(auc: float) -> tuple[float, float]:
    """The share to prune and lambda, to two decimals.

    If a share p of random documents is of the wanted kind too, a perfect score tells examples from
    them with an AUC of 1 - p / 2. So t = 2 AUC - 1 is at most the share that is not wanted, and
    small where the score tells little. The share is min(1/2, t), and lambda is t squared: chosen by
    a comparison (docs/evidence.md).

    Args:
        auc: of examples and random documents, cross-validated; below 0.5 counts as 0.5.
    """
    told = max(0.0, 2 * auc - 1)
    return round(min(PRUNE_FRACTION, told), 2), round(told**2, 2)


def wanted_share(auc: float) -> str:
    """What the AUC of examples and random documents says of the source, as a question.

    If a share p of the random documents is of the wanted kind, no score has an AUC above 1 - p / 2.
    """
    most = min(1.0, 2 - 2 * auc)
    return (
        f"By this score, at most 2 - 2 AUC = {most:.0%} of the source is of the wanted kind: is "
        "that so? If more is, the examples show a part of what you want, and the rest is pruned."
    )


def prune_fraction_due(run: Run) -> float:
    """The share to prune, as set or by the rule. Raises RunError if the examples are not fitted."""
    settings = run.settings
    return _following(run)[0] if settings.pruning_follows else settings.prune_fraction


def prune_fraction_of(run: Run) -> float:
    """The share that is pruned, less if the budget needs more. Raises RunError before `quality`."""
    if not run.settings.pruning_follows:
        return run.settings.prune_fraction
    return float(run.receipt("quality", 0).metrics["prune_fraction"])


def selection_of(run: Run) -> Selection:
    """The settings of the selection, with the lambda that is in force. Raises as above."""
    selection = run.settings.selection
    if not run.settings.weight_follows:
        return selection
    return selection.filled_in(quality_weight=_following(run)[1])


def settings_of(run: Run, *without: str) -> dict[str, Any]:
    """The settings as plain data, with what follows where it is not set. Raises as above.

    Args:
        run: the run.
        without: groups that are left out.
    """
    data = run.settings.model_dump(mode="json", exclude={*without})
    if run.settings.pruning_follows:
        data["quality"]["prune_fraction"] = prune_fraction_of(run)
    return data | {"selection": selection_of(run).model_dump(mode="json")}


def _following(run: Run) -> tuple[float, float]:
    [figures] = run.receipt("example_models").metrics.values()
    return following(figures["auc"])
