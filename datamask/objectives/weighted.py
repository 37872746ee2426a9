"""The joint objective: terms with weights and scales.

    f(U) = λ · Q(U) / r_Q + (1 − λ) · s · D(U) / r_D + Σ w · s · T(U) / r_T

with s = +1 for terms to maximise and −1 for terms to minimise, so a positive weight always improves
a term. The range r is the gain of the best selection by a term alone over random documents
(`learning/scales.py`). arXiv 2512.24265 adds λ · Q + (1 − λ) · D without scales, so its λ is a
different number. `selection.scale_terms: false` gives that sum: all r are 1.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from datamask.config.selection import Selection
from datamask.config.user_class import import_class, user_code
from datamask.errors import SettingsError
from datamask.objectives.disf import DiSF
from datamask.objectives.facility_location import FacilityLocation
from datamask.objectives.groups import GroupBalance, LengthBalance
from datamask.objectives.level import Level
from datamask.objectives.pairwise import PairwiseSimilarity
from datamask.objectives.protocol import Batch, MomentObjective, Objective
from datamask.objectives.quality import Quality
from datamask.objectives.target import TargetCoverage
from datamask.storage.unchanged import content_digest, pinned

BUILT_IN: Mapping[str, type[Any]] = {
    "quality": Quality,
    "pairwise": PairwiseSimilarity,
    "disf": DiSF,
    "facility_location": FacilityLocation,
    "group_balance": GroupBalance,
    "length": LengthBalance,
    "target": TargetCoverage,
}


def load_objective(
    name: str, options: Mapping[str, Any] | None = None, planned: str | None = None
) -> Objective:
    """Make an objective from its built-in name or from `package.module:Class`.

    The module is imported, which runs its code. Only classes with `maximise` and `values` are
    called, once per process for equal options and equal content of the file `path`.

    Args:
        name: of the objective.
        options: keyword arguments of its class; `path` is a local file.
        planned: the digest of that file when the run was planned, if it must be compared.

    Raises:
        SettingsError: the name is unknown, the import fails, the options do not fit, or the class
            is not an objective.
        InputError: the file is not the planned one.
    """
    is_own = ":" in name
    if not is_own and name not in BUILT_IN:
        raise SettingsError(f"objective `{name}`: unknown; known are {', '.join(BUILT_IN)}")
    unfit = SettingsError(
        f"objective `{name}`: needs a class with `name`, `maximise` and `values`; see "
        "docs/own-objective.md"
    )
    with user_code(f"objective `{name}`: cannot be made; check its name, options and module"):
        made = import_class(name) if is_own else BUILT_IN[name]
        # Settings may come from others: call only what was written as an objective.
        if not (isinstance(made, type) and hasattr(made, "maximise") and hasattr(made, "values")):
            raise unfit
        objective = _made(made, options or {}, planned)
    if not isinstance(objective, Objective):
        raise unfit
    return objective


_objectives: dict[tuple[object, ...], Objective] = {}
_making = threading.RLock()


def _made(kind: type[Any], options: Mapping[str, Any], planned: str | None) -> Any:
    """Return an objective from this process's cache, or make it; one thread at a time."""
    with contextlib.ExitStack() as stack, _making:
        digest = ""
        if path := options.get("path"):
            digest = stack.enter_context(pinned(path, planned, content_digest))
        key = (kind, repr(sorted(options.items())), digest)
        if key not in _objectives:
            _objectives[key] = kind(**options)
        return _objectives[key]


@dataclass(frozen=True, slots=True)
class WeightedTerm:
    """A term with its weight, and the scale (> 0) that divides it."""

    objective: Objective
    weight: float
    scale: float = 1.0

    @property
    def factor(self) -> float:
        """The factor of the raw value in the objective: weight, divided by scale, with its sign."""
        return self.weight / self.scale * (1.0 if self.objective.maximise else -1.0)

    @property
    def is_linear(self) -> bool:
        """True if the gain of a document does not depend on the other documents."""
        return isinstance(self.objective, MomentObjective) and self.objective.linear


def is_linear(terms: Sequence[WeightedTerm]) -> bool:
    """Return True if every term is linear."""
    return all(term.is_linear for term in terms)


def coverage_factor(terms: Sequence[WeightedTerm]) -> float:
    """Return the factor of facility location in the objective; 0 without it."""
    return sum(t.factor for t in terms if isinstance(t.objective, FacilityLocation))


@dataclass(frozen=True, slots=True)
class WeightedObjective:
    """The joint objective; terms of weight 0 are reported but not learned."""

    terms: tuple[WeightedTerm, ...]

    @property
    def active(self) -> tuple[WeightedTerm, ...]:
        """The terms with a weight."""
        return tuple(term for term in self.terms if term.weight != 0)

    @property
    def has_expectation(self) -> bool:
        """True if the `expected` estimator supports every active term."""
        return all(
            isinstance(term.objective, MomentObjective | FacilityLocation) for term in self.active
        )

    def values(self, masks_GB: Tensor, batch: Batch) -> Tensor:
        """Compute the weighted sum of the terms for each of G masks, to be maximised; shape G."""
        total = torch.zeros(masks_GB.shape[0], device=masks_GB.device)
        for term in self.active:
            total = total + term.factor * term.objective.values(masks_GB, batch)
        return total

    def at_level(self, raw: Mapping[str, float], level: Level) -> dict[str, float]:
        """Convert raw values for learned quality to reported values, by name."""
        of_quality = {t.objective.name for t in self.terms if isinstance(t.objective, Quality)}
        return {n: level.reported(raw[n]) if n in of_quality else raw[n] for n in raw}

    def as_reported(self, level: Level) -> WeightedObjective:
        """Return the same objective, for values as they are reported."""
        return WeightedObjective(with_unit(self.terms, level.unit))

    def join(self, raw: Mapping[str, float]) -> float:
        """Compute the joint objective from the raw values of the terms."""
        return sum(t.factor * raw[t.objective.name] for t in self.terms if t.weight != 0)


def with_unit(terms: Sequence[WeightedTerm], unit: float) -> tuple[WeightedTerm, ...]:
    """Return terms with equal contributions after qualities are multiplied by *unit*."""
    return tuple(
        replace(term, scale=term.scale * unit) if isinstance(term.objective, Quality) else term
        for term in terms
    )


def build_terms(
    selection: Selection, planned: Mapping[str, str] | None = None
) -> tuple[WeightedTerm, ...]:
    """Make quality and the metric with lambda and 1 − lambda, then `more_terms`; scales 1.

    Args:
        selection: names the terms.
        planned: digests of their files when the run was planned, by path.

    Raises:
        InputError: a file is not the planned one.
        SettingsError: a term cannot be made, or two have the same name.
    """
    terms = [WeightedTerm(Quality(), selection.quality_weight)]
    if selection.metric:
        terms.append(WeightedTerm(load_objective(selection.metric), 1 - selection.quality_weight))
    for extra in selection.more_terms:
        options = extra.options | ({"path": extra.path} if extra.path else {})
        objective = load_objective(extra.name, options, (planned or {}).get(extra.path))
        terms.append(WeightedTerm(objective, extra.weight))
    names = [term.objective.name for term in terms]
    if len(set(names)) != len(names):
        raise SettingsError(f"selection.more_terms: names of terms must differ, got {names}")
    return tuple(terms)
