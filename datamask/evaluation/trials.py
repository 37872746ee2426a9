"""The units of an evaluation: an encoded arm, and a model trained on one with a seed and a rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from datamask.evaluation.models import learning_rates
from datamask.runs.run import Run
from datamask.runs.stages import Unit


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


def arm_units(run: Run) -> list[Unit]:
    """The arms; what determines one are its settings and the selection it takes documents from."""
    units = []
    for arm in run.settings.evaluation.arms:
        settings: list[Any] = [arm, run.pinned_revisions.get(f"arm:{arm.name}"), run.settings.seed]
        if arm.kind == "selection" and not arm.change:
            settings.append(run.fingerprint_all("selection"))
        elif arm.change:
            settings += [run.settings.selection, run.fingerprint_all("embeddings")]
            settings.append(run.fingerprint_all(run.quality_stage))
        elif arm.kind == "top_quality":
            settings.append(run.settings.selection.model_dump(include={"ratio", "documents"}))
            settings += [run.settings.selection.tokens, run.fingerprint_all(run.quality_stage)]
        units.append(Unit(arm.name, settings))
    return units


def trials(run: Run) -> list[Trial]:
    """The models to train, as far as is known now: those of all seeds first come seed by seed.

    After the first `evaluation.seeds`, a seed is added while an interval is wider than asked for,
    and only for arms that have not shown to be worse (`verdict.race`).
    """
    from datamask.evaluation.results import arms_to_continue

    evaluation = run.settings.evaluation
    arms = list(range(len(evaluation.arms)))
    found: list[Trial] = []
    for seed in range(evaluation.last_seed):
        if seed >= evaluation.seeds:
            units = [training_unit(run, trial) for trial in found]
            if any(state != "done" for state in run.states_of("training", units)):
                break
            arms = arms_to_continue(run, found, seed)
            if not arms:
                break
        rates = range(len(learning_rates(evaluation)))
        found += [Trial(arm, seed, rate) for arm in arms for rate in rates]
    return found


def training_unit(run: Run, trial: Trial) -> Unit:
    """The unit of a trial."""
    evaluation = run.settings.evaluation
    rate = learning_rates(evaluation)[trial.rate]
    name = f"{evaluation.arms[trial.arm].name}-seed{trial.seed}-rate{rate:g}"
    settings = [trial.seed, rate, run.settings.seed]
    return Unit(name, settings, (("arms", trial.arm),), is_extra=trial.seed >= evaluation.seeds)


def training_units(run: Run) -> list[Unit]:
    """The units of stage `training`."""
    return [training_unit(run, trial) for trial in trials(run)]
