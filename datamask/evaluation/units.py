"""The units of work of an evaluation, arms and models to train, and what trained models show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from datamask.config.evaluation import Evaluation
from datamask.errors import RunError
from datamask.evaluation import verdict
from datamask.evaluation.models import learning_rates
from datamask.evaluation.pinning import changed_selection
from datamask.evaluation.texts import SOURCE_SET
from datamask.runs import stage_settings as of
from datamask.runs.files import read_columns
from datamask.runs.receipt import read_receipt
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


def arm_units(run: Run) -> list[Unit]:
    """The arms; what determines one are its settings and the selection it takes documents from."""
    units = []
    for arm in run.settings.evaluation.arms:
        pinned = run.pinned_revisions.get(f"arm:{arm.name}")
        settings: list[Any] = [arm.kind, arm.change, pinned, run.settings.seed]
        if arm.kind == "ids":
            settings.append(arm.column)
        elif arm.kind == "selection" and not arm.change:
            settings.append(run.fingerprint_all("selection"))
        elif arm.change:
            changed = changed_selection(run.settings, arm)
            as_changed = run.settings.model_copy(update={"selection": changed})
            settings.append(of.learner(as_changed))
            settings += map(run.fingerprint_all, of.balanced_topics(as_changed))
            settings.append(run.fingerprint_all("embeddings"))
            settings.append(run.fingerprint_all(run.quality_stage))
        elif arm.kind == "top_quality":
            settings.append(of.budget(run.settings.selection))
            settings.append(run.fingerprint_all(run.quality_stage))
        units.append(Unit(f"evaluation/arms/{arm.name}", settings))
    return units


def trials_of(run: Run) -> list[Trial]:
    """The models to train, seed by seed."""
    evaluation = run.settings.evaluation
    arms, rates = range(len(evaluation.arms)), range(len(learning_rates(evaluation)))
    return [
        Trial(arm, seed, rate) for seed in range(evaluation.seeds) for arm in arms for rate in rates
    ]


def training_units(run: Run) -> list[Unit]:
    """The units of stage `training`."""
    return [unit_of(run, trial) for trial in trials_of(run)]


def unit_of(run: Run, trial: Trial) -> Unit:
    """The unit of a trial."""
    evaluation = run.settings.evaluation
    rate = learning_rates(evaluation)[trial.rate]
    name = f"evaluation/training/{evaluation.arms[trial.arm].name}-seed{trial.seed}-rate{rate:g}"
    settings = [trial.seed, rate, run.settings.seed]
    return Unit(name, settings, (("arms", trial.arm),))


def read_bits(run: Run, wanted: list[Trial]) -> tuple[verdict.Bits, dict[str, str]]:
    """Bits by arm, seed, learning rate and document, without rates at which a model diverged.

    Raises:
        RunError: no rate is left.
    """
    rates = learning_rates(run.settings.evaluation)
    names = [unit_of(run, trial).name for trial in wanted]
    read = [_trial_bits(run.fetch(f"{name}.parquet")) for name in names]
    diverged = {
        f"{rates[trial.rate]:g}": f"{Path(name).name}: {reason}"
        for trial, name, (reason, _) in zip(wanted, names, read, strict=True)
        if reason
    }
    left = [index for index, rate in enumerate(rates) if f"{rate:g}" not in diverged]
    if not left:
        raise RunError(
            f"{run.address}: evaluation: models diverged at every learning rate "
            f"({next(iter(diverged.values()))}); set lower evaluation.learning_rates"
        )
    seeds = max(trial.seed for trial in wanted) + 1
    documents = max(len(bits) for _, bits in read)
    shape = (len(run.settings.evaluation.arms), seeds, len(left), documents)
    bits_of = np.full(shape, np.nan)
    for trial, (_, bits) in zip(wanted, read, strict=True):
        if trial.rate in left:
            bits_of[trial.arm, trial.seed, left.index(trial.rate)] = bits
    return bits_of, diverged


def read_main_bits(
    run: Run, wanted: list[Trial]
) -> tuple[verdict.Bits, npt.NDArray[np.int64], dict[str, str]]:
    """`read_bits` of the main set of held-out texts, with the bytes of each text in between."""
    bits, diverged = read_bits(run, wanted)
    held_out = read_columns(run.path("held_out"), ["set", "in_all", "bytes"])
    _, is_member = next(sets_of(held_out, run.settings.evaluation))
    return bits[..., is_member], held_out["bytes"].to_numpy()[is_member], diverged


def _trial_bits(path: Path) -> tuple[str | None, npt.NDArray[np.float64]]:
    """Why a trial diverged, and its bits."""
    bits = read_columns(path, ["bits"])["bits"].to_numpy()
    return read_receipt(path).metrics["diverged"], bits


def sets_of(
    held_out: pa.Table, evaluation: Evaluation
) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
    """Every set and which rows are in it: those of the user, the sample of all, then its groups."""
    in_all = held_out["in_all"].to_numpy()
    names = np.asarray(held_out["set"].to_pylist(), object)
    own = [own_set.name for own_set in evaluation.sets]
    for name in dict.fromkeys([*own, SOURCE_SET, *names]):
        is_member = in_all if name == SOURCE_SET else names == name
        if is_member.any():
            yield str(name), is_member
