"""A mask as a function of a document, which judges documents after learning.

For objectives that are functions of moments, the gain of a document depends on the selection only
through the gradient at its moments (`learning.moment_gradient`):

    logit(x, q) = unit · Σ_t factor_t · (xᵀ W_t x + b_tᵀ x + c_t · q + (1/2 − p) x-curvature_t)
                  − threshold

with the factor and the unit of `learning.published`, and q as it was learned (`objectives.level`).
p is 1 for a document of the selection and 0 for another, so the logit is the gain against the other
documents of the selection in both cases. A document is kept if its logit is above 0.

If the selection has not settled, or if the gradient is nearly the same for all documents, the slope
learned from the sample (`learned`) can decide instead. Nothing here calls an objective that a user
wrote: a term whose curvature is unknown here has none, which matters less than 1/S.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from datamask.learning.data import ShardData
from datamask.learning.moment_gradient import along, along_and, raw_slope
from datamask.objectives.disf import DiSF
from datamask.objectives.pairwise import PairwiseSimilarity
from datamask.objectives.protocol import MomentObjective, Moments
from datamask.objectives.target import TargetCoverage, curvature_of_distance
from datamask.objectives.weighted import WeightedTerm

CURVED: Mapping[str, type[MomentObjective]] = {
    term.name: term for term in (DiSF, PairwiseSimilarity)
}
"""Built-in terms whose curvature depends on nothing but moments."""

KINDS = ("", *CURVED, TargetCoverage.name)
"""Values of `TermGain.kind`."""


@dataclass(frozen=True, slots=True)
class TermGain:
    """The contribution of a document to one term.

    Args:
        name: of the term.
        kind: a built-in term, whose curvature is known here; empty for others.
        factor: weight, divided by scale, with the sign of its direction.
        slope: the gradient at the moments of the selection: W as `second_DD`, b as `first_D`, c as
            `quality` and `scores`; its count is not used.
    """

    name: str
    kind: str
    factor: float
    slope: Moments

    def curvature(self, moments: Moments) -> Callable[[Tensor], Tensor] | None:
        """Return δ_jᵀ ∇²F δ_j of the raw value as a function of documents; None if unknown."""
        if self.kind in CURVED:
            return CURVED[self.kind]().self_curvature(moments)
        if self.kind == TargetCoverage.name:
            return curvature_of_distance(moments)
        return None


@dataclass(frozen=True, slots=True)
class MaskModel:
    """The marginal gain of any document, minus the threshold.

    Args:
        terms: the terms with a weight.
        moments: of the selection, up to the highest order that terms read.
        unit: of the logits (`published.unit`).
        threshold: in units of the logits.
        learned: the slope of the judge of a run (`exchange.Judge`), if it decides in place of the
            gain.
    """

    terms: tuple[TermGain, ...]
    moments: Moments
    unit: float
    threshold: float
    learned: Moments | None = None

    def judge(self, data: ShardData, selected_N: np.ndarray | None = None) -> Judged:
        """Compute the logits of some documents, and what each term adds to them, in one pass.

        *selected_N* marks the documents that belong to the selection of the model; None: none do.
        """
        inclusion = torch.zeros_like(data.quality_N)
        if selected_N is not None:
            inclusion = torch.from_numpy(selected_N).to(inclusion)
        model, exact = self._on(data.device), data.exact
        parts = [np.zeros((0, len(self.terms) + 1), np.float64)]
        curved = [(term, term.curvature(model.moments)) for term in model.terms]
        for rows in exact.chunks():
            linear, own = [], torch.zeros_like(inclusion[rows], dtype=torch.float64)
            for term, function in curved:
                known = [function] if function else []
                gain, *curvature = along_and(term.slope, exact, rows, *known).to(torch.float64)
                linear.append(self.unit * term.factor * gain)
                for value in curvature:
                    own += self.unit * term.factor * (0.5 - inclusion[rows]) * value
            if model.learned:
                judged = along(model.learned, exact, rows).to(torch.float64)
                own = judged - torch.stack(linear).sum(0)
            parts.append(torch.stack([*linear, own], 1).cpu().numpy())
        by_term = np.concatenate(parts)
        gains = {term.name: by_term[:, index] for index, term in enumerate(self.terms)}
        return Judged(by_term.sum(1) - self.threshold, gains)

    def _on(self, device: torch.device) -> MaskModel:
        terms = tuple(replace(term, slope=term.slope.to(device)) for term in self.terms)
        learned = self.learned.to(device) if self.learned else None
        return replace(self, terms=terms, moments=self.moments.to(device), learned=learned)


@dataclass(frozen=True, slots=True)
class Judged:
    """Judged documents: logits, float64, shape N, and what each term adds to them to first order.

    The gains have the units of the logits, and are linear in the moments of the documents.
    """

    logits: np.ndarray
    gains: Mapping[str, np.ndarray]


def mask_model(
    terms: Sequence[WeightedTerm], moments: Moments, unit: float, threshold: float = 0.0
) -> MaskModel:
    """Make the model of a selection from moments on the CPU; all terms are moment objectives."""
    return MaskModel(
        tuple(_gain(term, moments) for term in terms if term.weight != 0), moments, unit, threshold
    )


def _gain(term: WeightedTerm, moments: Moments) -> TermGain:
    objective = term.objective
    assert isinstance(objective, MomentObjective)
    is_known = type(objective) in (*CURVED.values(), TargetCoverage)
    kind = objective.name if is_known else ""
    slope = raw_slope(objective, moments)
    return TermGain(objective.name, kind, term.factor, slope)
