"""A trial: one model, trained on an arm with a seed and a learning rate."""

from __future__ import annotations

from dataclasses import dataclass

from datamask.evaluation.models import learning_rates
from datamask.runs.run import Run
from datamask.runs.stage import Unit


@dataclass(frozen=True, slots=True)
class Trial:
    """One model to train.

    Args:
        arm: its place in the settings.
        seed: from 0; of the initial weights and of the draw of text, the same for all arms.
        rate: the learning rate's place in the settings.
    """

    arm: int
    seed: int
    rate: int


def unit_of(run: Run, trial: Trial) -> Unit:
    """The unit of a trial."""
    evaluation = run.settings.evaluation
    rate = learning_rates(evaluation)[trial.rate]
    name = f"evaluation/training/{evaluation.arms[trial.arm].name}-seed{trial.seed}-rate{rate:g}"
    settings = [trial.seed, rate, run.settings.seed]
    return Unit(name, settings, (("arms", trial.arm),), is_extra=trial.seed >= evaluation.seeds)
