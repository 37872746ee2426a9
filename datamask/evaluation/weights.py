"""Lambda chosen by trained models: an arm for each value, and which of them trains best."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from datamask.config.evaluation import Arm, Evaluation
from datamask.config.loading import parse_settings
from datamask.errors import RunError
from datamask.evaluation.results import by_set, read_results
from datamask.runs.run import Run


@dataclass(frozen=True, slots=True)
class TrainedWeight:
    """What models trained on the selection with one lambda show.

    Args:
        quality_weight: lambda.
        bits_per_byte: on the main set of held-out texts, mean over seeds and learning rates.
        verdict: `best`, or against the best one: `undecided` or `worse`.
    """

    quality_weight: float
    bits_per_byte: float
    verdict: str


def with_weights(evaluation: Evaluation, weights: Iterable[float]) -> Evaluation:
    """The evaluation, with an arm for every lambda that has none."""
    known = {arm.change["quality_weight"] for arm in evaluation.arms if _tries_weight(arm)}
    more = [
        Arm(name=f"lambda-{weight:g}", change={"quality_weight": weight})
        for weight in sorted(set(weights) - known)
    ]
    arms = [arm.model_dump(mode="json") for arm in (*evaluation.arms, *more)]
    data = evaluation.model_dump(mode="json") | {"arms": arms}
    more_arms: Evaluation = parse_settings(data, Evaluation)
    return more_arms


def trained_weights(run: Run, weights: Iterable[float]) -> list[TrainedWeight]:
    """What a finished evaluation shows of each lambda, the best one first."""
    wanted = set(weights)
    weight_of = {
        arm.name: arm.change["quality_weight"]
        for arm in run.settings.evaluation.arms
        if _tries_weight(arm) and arm.change["quality_weight"] in wanted
    }
    missing = wanted - set(weight_of.values())
    if missing:
        raise RunError(
            f"{run.address}: no models are trained for lambda {min(missing):g}; run "
            f"`datamask sweep {run.address} --set sweep.by=evaluation`"
        )
    arms, pairs = next(iter(by_set(read_results(run)).values()))
    bits = {row["arm"]: row["bits_per_byte"] for row in arms}
    ordered = sorted(weight_of, key=lambda name: (bits[name], weight_of[name]))
    verdicts = dict.fromkeys(ordered, "worse")
    for row in pairs:
        pair = (row["arm"], row["other"])
        if ordered[0] in pair and row["verdict"] == "undecided":
            verdicts |= dict.fromkeys(pair, "undecided")
    verdicts[ordered[0]] = "best"
    return [TrainedWeight(weight_of[name], bits[name], verdicts[name]) for name in ordered]


def _tries_weight(arm: Arm) -> bool:
    return list(arm.change) == ["quality_weight"]
