"""Terms joined by weights and scales into the one number that is maximised.

f(m) = Σ_t w_t · σ_t · v_t(m) / scale_t, with σ_t = +1 for terms to maximise and −1 for terms to
minimise (arXiv 2512.24265 with two terms; any number here). A positive weight always pursues the
term in its own good direction.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from datamask.config import Selection
from datamask.errors import SettingsError
from datamask.objectives.disf import DiSF
from datamask.objectives.facility_location import FacilityLocation
from datamask.objectives.pairwise import PairwiseSimilarity
from datamask.objectives.protocol import Batch, MomentObjective, Objective
from datamask.objectives.quality import Quality

BUILT_IN: Mapping[str, type[Any]] = {
    "quality": Quality,
    "pairwise": PairwiseSimilarity,
    "disf": DiSF,
    "facility_location": FacilityLocation,
}


def load_objective(name: str, options: Mapping[str, Any] | None = None) -> Objective:
    """Make an objective from its built-in name or from `package.module:Class`.

    The module is imported, which runs its code. No class is called but one with `maximise` and
    `values`.

    Raises:
        SettingsError: unknown name, failing import, unfit options, or not an objective.
    """
    module, colon, attribute = name.partition(":")
    if not colon and name not in BUILT_IN:
        raise SettingsError(f"objective `{name}`: unknown; known are {', '.join(BUILT_IN)}")
    unfit = SettingsError(
        f"objective `{name}`: needs a class with `name`, `maximise` and `values`; see "
        "CONTRIBUTING.md"
    )
    try:
        made = BUILT_IN[name] if not colon else getattr(importlib.import_module(module), attribute)
        # Settings come from anywhere: nothing is called that was not written as an objective.
        if not (isinstance(made, type) and hasattr(made, "maximise") and hasattr(made, "values")):
            raise unfit
        objective = made(**(options or {}))
    except SettingsError:
        raise
    except Exception as error:  # a user's module may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise SettingsError(
            f"objective `{name}`: cannot be made ({reason}); check the name, its options, and "
            "that the module can be imported from here"
        ) from error
    if not isinstance(objective, Objective):
        raise unfit
    return objective


@dataclass(frozen=True, slots=True)
class WeightedTerm:
    """A term with its weight and the scale it is divided by (above 0)."""

    objective: Objective
    weight: float
    scale: float = 1.0

    @property
    def factor(self) -> float:
        """What the raw value is multiplied with in the objective."""
        return self.weight / self.scale * (1.0 if self.objective.maximise else -1.0)


@dataclass(frozen=True, slots=True)
class WeightedObjective:
    """The joint objective; terms of weight 0 are reported but cost the learner nothing."""

    terms: tuple[WeightedTerm, ...]

    @property
    def active(self) -> tuple[WeightedTerm, ...]:
        """Terms that matter to the learner."""
        return tuple(term for term in self.terms if term.weight != 0)

    @property
    def has_expectation(self) -> bool:
        """Whether the `expected` estimator can serve every active term."""
        return all(
            isinstance(term.objective, MomentObjective | FacilityLocation) for term in self.active
        )

    def values(self, masks_GB: Tensor, batch: Batch) -> Tensor:
        """The joint objective of each mask, to be maximised; shape G."""
        total = torch.zeros(masks_GB.shape[0], device=masks_GB.device)
        for term in self.active:
            total = total + term.factor * term.objective.values(masks_GB, batch)
        return total

    def join(self, raw: Mapping[str, float]) -> float:
        """The joint objective from the raw values of the terms."""
        return sum(t.factor * raw[t.objective.name] for t in self.terms if t.weight != 0)


def build_terms(selection: Selection) -> tuple[WeightedTerm, ...]:
    """Quality and the metric with lambda and 1 − lambda, then `more_terms`; scales 1.

    Raises:
        SettingsError: a term cannot be made, or two have the same name.
    """
    terms = [
        WeightedTerm(Quality(), selection.quality_weight),
        WeightedTerm(load_objective(selection.metric), 1 - selection.quality_weight),
    ]
    for extra in selection.more_terms:
        terms.append(WeightedTerm(load_objective(extra.name, extra.options), extra.weight))
    names = [term.objective.name for term in terms]
    if len(set(names)) != len(names):
        raise SettingsError(f"selection.more_terms: names of terms must differ, got {names}")
    return tuple(terms)
