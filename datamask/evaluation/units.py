"""The units of work of an evaluation: arms, models to train, and the bits of trained models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from datamask.config.evaluation import Evaluation
from datamask.errors import RunError
from datamask.evaluation.models import learning_rates
from datamask.evaluation.pinning import changed_selection
from datamask.evaluation.texts import SOURCE_SET
from datamask.runs import stage_settings as of
from datamask.runs.run import Run
from datamask.runs.stages import Unit


@dataclass(frozen=True, slots=True)
class Trial:
    """One model to train.

    Args:
        arm: its place in the settings.
        seed: from 0; draws the initial weights and the text, the same for all arms.
        rate: the learning rate.
    """

    arm: int
    seed: int
    rate: float


def arm_units(run: Run) -> list[Unit]:
    """List the arms; an arm is determined by its settings and the selection that it reads."""
    units = []
    for arm in run.settings.evaluation.arms:
        pinned = run.pinned_revisions.get(f"arm:{arm.name}")
        settings: list[Any] = [arm.kind, arm.change, pinned, run.settings.seed]
        if arm.kind in ("ids", "texts"):
            settings += arm.columns
        elif arm.kind == "selection" and not arm.change:
            settings.append(run.fingerprint_all("selection"))
        elif arm.change:
            changed = changed_selection(run.settings.selection, arm)
            as_changed = run.settings.model_copy(update={"selection": changed})
            settings.append(of.learner(as_changed))
            is_followed = run.settings.weight_follows and "quality_weight" not in arm.change
            settings += ["follows"] if is_followed else []
            settings += map(run.fingerprint_all, of.balanced_groups(as_changed))
            settings.append(run.fingerprint_all("embeddings"))
            settings.append(run.fingerprint_all("quality"))
        elif arm.kind == "top_quality":
            settings.append(of.budget(run.settings.selection))
            settings.append(run.fingerprint_all("quality"))
        units.append(Unit(f"evaluation/arms/{arm.name}", settings))
    return units


def trials_of(run: Run) -> list[Trial]:
    """List the models to train, seed by seed."""
    evaluation = run.settings.evaluation
    return [
        Trial(arm, seed, rate)
        for seed in range(evaluation.seeds)
        for arm in range(len(evaluation.arms))
        for rate in learning_rates(evaluation)
    ]


def training_units(run: Run) -> list[Unit]:
    """List the units of stage `training`."""
    units = []
    for trial in trials_of(run):
        arm = run.settings.evaluation.arms[trial.arm].name
        name = f"evaluation/training/{arm}-seed{trial.seed}-rate{trial.rate:g}"
        settings = [trial.seed, trial.rate, run.settings.seed]
        units.append(Unit(name, settings, (("arms", trial.arm),)))
    return units


def read_bits(run: Run) -> tuple[dict[float, npt.NDArray[np.float64]], dict[str, str]]:
    """Read how many bits each trained model needs for each held-out document.

    Returns arrays (arms x seeds x documents) by learning rate, for rates at which no model
    diverged; and by rate, as text, why the other rates are left out.

    Raises:
        RunError: no rate remains, or a model is missing or stale.
    """
    evaluation, diverged = run.settings.evaluation, dict[str, str]()
    read: dict[tuple[float, int, int], npt.NDArray[np.float64]] = {}
    for unit, trial in enumerate(trials_of(run)):
        if reason := run.receipt("training", unit).metrics["diverged"]:
            diverged[f"{trial.rate:g}"] = f"{run.unit_label('training', unit)}: {reason}"
        bits = run.read_output("training", unit, ["bits"])["bits"].to_numpy()
        read[trial.rate, trial.arm, trial.seed] = bits
    usable = [rate for rate in learning_rates(evaluation) if f"{rate:g}" not in diverged]
    if not usable:
        raise RunError(
            f"{run.address}: evaluation: models diverged at every learning rate "
            f"({next(iter(diverged.values()))}); set lower evaluation.learning_rates"
        )
    arms, seeds = range(len(evaluation.arms)), range(evaluation.seeds)
    by_rate = {
        rate: np.array([[read[rate, arm, seed] for seed in seeds] for arm in arms])
        for rate in usable
    }
    return by_rate, diverged


def sets_of(
    held_out: pa.Table, evaluation: Evaluation
) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
    """Yield every set with a mask of its rows: the user's, the sample of all, its groups."""
    in_all = held_out["in_all"].to_numpy()
    names = np.asarray(held_out["set"].to_pylist(), object)
    own = [own_set.name for own_set in evaluation.sets]
    for name in dict.fromkeys([*own, SOURCE_SET, *names]):
        is_member = in_all if name == SOURCE_SET else names == name
        if is_member.any():
            yield str(name), is_member
