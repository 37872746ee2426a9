"""The units of work of an evaluation: arms, and trials as far as they are known."""

from __future__ import annotations

from typing import Any

from datamask.evaluation import verdict
from datamask.evaluation.measurements import read_bits, sets_of
from datamask.evaluation.models import learning_rates
from datamask.evaluation.trials import Trial, unit_of
from datamask.runs.files import read_columns
from datamask.runs.run import Run
from datamask.runs.stage import Unit


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
        units.append(Unit(f"evaluation/arms/{arm.name}", settings))
    return units


def trials_of(run: Run) -> list[Trial]:
    """The models to train, as far as is known now: those of all seeds first come seed by seed.

    After the first `evaluation.seeds`, a seed is added while an interval is wider than asked for,
    and only for arms that have not shown to be worse (`verdict.race`).
    """
    evaluation = run.settings.evaluation
    arms = list(range(len(evaluation.arms)))
    found: list[Trial] = []
    for seed in range(evaluation.last_seed):
        if seed >= evaluation.seeds:
            units = [unit_of(run, trial) for trial in found]
            if any(state != "done" for state in run.states_of("training", units)):
                break
            arms = _arms_to_continue(run, found)
            if not arms:
                break
        rates = range(len(learning_rates(evaluation)))
        found += [Trial(arm, seed, rate) for arm in arms for rate in rates]
    return found


def _arms_to_continue(run: Run, found: list[Trial]) -> list[int]:
    """The arms that are trained with another seed, given finished trials (`verdict.race`)."""
    evaluation = run.settings.evaluation
    bits, _ = read_bits(run, found)
    held_out = read_columns(run.path("held_out"), ["set", "in_all", "bytes"])
    _, is_member = next(sets_of(held_out))
    sizes = held_out["bytes"].to_numpy()[is_member]
    looks = evaluation.last_seed - evaluation.seeds
    some = bits[..., is_member]
    return verdict.race(some, sizes, evaluation.level, looks, evaluation.resolution)


def training_units(run: Run) -> list[Unit]:
    """The units of stage `training`."""
    return [unit_of(run, trial) for trial in trials_of(run)]
