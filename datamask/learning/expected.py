"""The `expected` estimator: learn from the expected objective, without drawing any mask.

Every document is in the subset independently with probability p_i = sigmoid(L_i), Σ p = S. Moment
objectives are taken at the expected moments of the WHOLE shard, which are kept as state; facility
location has no moments and goes to `datamask.learning.coverage`.

A step is mirror ascent on a batch: its logits move along the gradient, shifted so that the batch
keeps its Σ p. The moments are linear in p and the objective is a function of D x D numbers, so the
best share of the move follows from one more value of it (the parabola through value, slope and
value after). That share damps the move, and steers the length of the next one: batches climb one
after the other, each seeing what the others have done, and no learning rate needs tuning.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from datamask.config.selection import Selection
from datamask.learning import coverage
from datamask.learning.data import (
    ShardData,
    add_moments,
    highest_order,
    mixed_moments,
    moments_of,
    raw_values,
    scaled_moments,
)
from datamask.learning.moment_gradient import along, curvatures_of, joint_value, mean_along, slopes
from datamask.learning.policy import solve_threshold, top_mask
from datamask.learning.policy_gradient import Record
from datamask.learning.resuming import (
    FROM_START,
    Resuming,
    State,
    generator_state,
    restore_generator,
)
from datamask.objectives.facility_location import FacilityLocation
from datamask.objectives.protocol import MomentObjective, Moments
from datamask.objectives.weighted import WeightedObjective

# Smaller batches cost more in fixed work (D x D per step) than they save; larger ones move too
# many documents by one gradient (docs/log.md#ascent-batches).
LEAST_BATCH, LARGEST_BATCH = 2048, 4096
# Longest move of the first pass, in deviations of the gradient, and its growth with every pass:
# certainty must grow in the end, but not before the moments have settled.
# See docs/log.md#ascent-moves.
LONGEST_MOVE, GROWTH = 3.0, 3.0
# A move grows or shrinks by at most this factor from step to step (docs/log.md#ascent-moves).
MOST_CHANGE = 2.0
# Changes of p below this wait in the logits: they cost as much as large ones.
# See docs/log.md#ascent-moves.
LEAST_CHANGE = 1e-6
# See docs/log.md#stopping.
PASSES_TO_STOP = 2


def learn(
    data: ShardData,
    objective: WeightedObjective,
    selection: Selection,
    num_selected: int,
    logits_N: Tensor,
    generator: torch.Generator,
    record: Record,
    resuming: Resuming = FROM_START,
) -> tuple[Tensor, int, str]:
    """Learn logits; returns them, the steps taken and what ended them.

    A step is a share `selection.batch_fraction` of the shard, in batches of 2048 to 4096 documents.
    """
    if any(isinstance(term.objective, FacilityLocation) for term in objective.active):
        return coverage.learn(data, objective, num_selected, logits_N, record, resuming)
    centred = logits_N - solve_threshold(logits_N, num_selected)
    ascent = Ascent(data, objective, num_selected, centred)
    share = min(
        data.num_documents, max(round(selection.batch_fraction * data.num_documents), LEAST_BATCH)
    )
    values: list[float] = []
    step = 0
    if resuming.state:
        step, values = int(resuming.state["step"]), resuming.state["values"].tolist()
        restore_generator(generator, resuming.state["generator"])
        ascent.restore(resuming.state)

    def state() -> State:
        return ascent.state() | {
            "step": np.asarray(step),
            "values": np.asarray(values, np.float64),
            "generator": generator_state(generator),
        }

    while step < selection.steps:
        order = torch.randperm(data.num_documents, generator=generator)
        for rows in torch.split(order, share):
            if step == selection.steps:
                break
            for batch in torch.split(rows, min(LARGEST_BATCH, data.chunk_rows)):
                ascent.climb(batch.sort().values.to(data.device))
            step += 1
        ascent.end_pass()
        mask = top_mask(ascent.logits_N, num_selected)
        raw = raw_values(objective.terms, data, mask)
        record(step, raw)
        values.append(objective.join(raw))
        if _has_settled(values, ascent.initial, selection.tolerance):
            return ascent.best_logits(), step, "tolerance"
        resuming.keep(state)
    return ascent.best_logits(), step, "steps"


def _has_settled(values: list[float], initial: float, tolerance: float) -> bool:
    """Whether the last passes raised the best mask by less than the tolerated share of its gain.

    The gain is over the initial moments, or over the first mask where no mask reaches these: S
    documents of a small shard have correlations that its moments scaled to S have not.
    """
    if tolerance <= 0 or len(values) <= PASSES_TO_STOP:
        return False
    best, before = max(values), max(values[:-PASSES_TO_STOP])
    return best - before <= tolerance * (best - min(initial, values[0]))


@dataclass(frozen=True, slots=True)
class StepSize:
    """How far moves may go.

    Args:
        move: length of the next, in units of `scale`.
        longest: longest of the present pass.
        scale: deviation of the first batch's gradient; 0 before it.
    """

    move: float = LONGEST_MOVE
    longest: float = LONGEST_MOVE
    scale: float = 0.0


class Ascent:
    """Inclusion probabilities of a shard, their moments, and the climb batch by batch.

    Args:
        data: the shard.
        objective: the joint objective.
        num_selected: S, of the shard or of the corpus that it is part of.
        logits_N: where to begin.
        totals: moments of all documents; None: the shard is all there is.
        moments: of what is selected, at these logits; None as for `totals`.
        weight: how often a document of this shard counts in `moments` when it moves.
        step_size: how far the first moves may go.
    """

    def __init__(
        self,
        data: ShardData,
        objective: WeightedObjective,
        num_selected: float,
        logits_N: Tensor,
        *,
        totals: Moments | None = None,
        moments: Moments | None = None,
        weight: float = 1.0,
        step_size: StepSize = StepSize(),
    ) -> None:
        self.data, self.objective, self.num_selected = data, objective, num_selected
        self.terms = [t for t in objective.active if isinstance(t.objective, MomentObjective)]
        self.order = highest_order(objective.terms)
        self.logits_N, self.weight, self.step_size = logits_N, weight, step_size
        self.inclusion_N = torch.sigmoid(self.logits_N)
        self.gradient_N = torch.zeros_like(self.inclusion_N)
        if totals is None:
            ones = torch.ones_like(self.inclusion_N)
            totals = moments_of(data, ones, self.order, data.product)
        if moments is None and bool((logits_N == logits_N[0]).all()):
            moments = totals
        elif moments is None:
            moments = moments_of(data, self.inclusion_N, self.order, data.product)
        self.totals, self.moments = totals, scaled_moments(moments, num_selected)
        self.value = self.initial = float(joint_value(self.terms, self.moments))

    def end_pass(self) -> None:
        """Every document has been in a batch: moves may grow longer."""
        self.step_size = replace(self.step_size, longest=self.step_size.longest * GROWTH)

    def climb(self, rows: Tensor) -> None:
        """Move one batch, and take with it the moments."""
        data, terms = self.data, self.terms
        features = data.rows(rows) if self.order > 0 else data.quality_N.new_zeros(len(rows), 0)
        slope = slopes(terms, self.moments)
        plain = along(slope, data, rows, features)
        before = self.inclusion_N[rows]
        curvature = self._curvature(features)
        gradient = plain - mean_along(slope, self.totals) + (0.5 - before) * curvature
        self.gradient_N[rows] = gradient
        step_size, weight = self.step_size, self.weight
        if step_size.scale == 0.0:
            deviation = float(gradient.std()) if len(rows) > 1 else 0.0
            step_size = replace(step_size, scale=deviation or 1.0)
        logits = self.logits_N[rows]
        moved = logits + step_size.move / step_size.scale * gradient
        total = float(before.sum(dtype=torch.float64))
        self.step_size = step_size
        if not 0 < total < len(rows):
            return  # all of the batch is settled, or rounding has it so
        moved -= solve_threshold(moved, total, float((moved - logits).mean()))
        change = torch.sigmoid(moved) - before
        some = (change.abs() > LEAST_CHANGE).nonzero()[:, 0]
        part, amount = rows[some], change[some]
        counted = amount if weight == 1.0 else weight * amount
        after = add_moments(self.moments, data, part, features[some], counted, data.product)
        after = scaled_moments(after, self.num_selected)
        value = float(joint_value(terms, after))
        if not math.isfinite(value):
            # With a weight, more than there is may seem to be taken away: the move was too long.
            self.step_size = replace(step_size, move=step_size.move / MOST_CHANGE)
            return
        first = weight * float((amount * (plain[some] - mean_along(slope, self.moments))).sum())
        alone = weight * 0.5 * float((curvature[some] * amount.square()).sum())
        second = value - self.value - first - alone
        rising = first + weight * float((amount * (0.5 - before[some]) * curvature[some]).sum())
        # Where the parabola has its top; without one, as far as can be.
        top = rising / (-2 * second) if second < 0 else MOST_CHANGE**2
        move = step_size.move * min(max(max(top, 0.0) ** 0.5, 1 / MOST_CHANGE), MOST_CHANGE)
        self.step_size = replace(step_size, move=min(move, step_size.longest))
        if top >= 1:
            self.logits_N[rows] = moved
            self.inclusion_N[part] += amount
            self.moments, self.value = after, value
        elif top > 0:
            mixed = (before[some] + top * amount).clamp(1e-12, 1 - 1e-7)
            moved[some] = torch.logit(mixed)
            self.logits_N[rows] = moved
            self.inclusion_N[part] = mixed
            self.moments = mixed_moments(self.moments, after, top)
            self.value = float(joint_value(terms, self.moments))

    def state(self) -> State:
        """Everything the next move depends on."""
        step_size = self.step_size
        numbers = (self.value, self.initial, step_size.move, step_size.longest, step_size.scale)
        tensors = {
            "logits": self.logits_N,
            "inclusion": self.inclusion_N,
            "gradient": self.gradient_N,
            "count": self.moments.count,
            "quality": self.moments.quality,
            "first": self.moments.first_D,
            "second": self.moments.second_DD,
            **{f"score:{name}": total for name, total in self.moments.scores.items()},
        }
        arrays = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
        return {**arrays, "numbers": np.asarray(numbers, np.float64)}

    def restore(self, state: State) -> None:
        """Be as when `state` was made."""

        def put(name: str) -> Tensor:
            return torch.from_numpy(state[name]).to(self.data.device)

        numbers = state["numbers"].tolist()
        self.value, self.initial = numbers[:2]
        self.step_size = StepSize(*numbers[2:])
        self.logits_N, self.inclusion_N = put("logits"), put("inclusion")
        self.gradient_N = put("gradient")
        self.moments = replace(
            self.moments,
            count=put("count"),
            quality=put("quality"),
            scores={name: put(f"score:{name}") for name in self.moments.scores},
            first_D=put("first"),
            second_DD=put("second"),
        )

    def _curvature(self, features_BD: Tensor) -> Tensor:
        """δ_jᵀ ∇²F δ_j of the joint objective; zeros where that would cost too much."""
        curvature = features_BD.new_zeros(len(features_BD))
        curvatures = curvatures_of(self.terms, self.moments, features_BD)
        for term in self.terms:
            if term.objective.name in curvatures:
                curvature += term.factor * curvatures[term.objective.name]
        return curvature

    def best_logits(self) -> Tensor:
        """The logits, or the last gradient where its top S is the better mask.

        It is for terms that are linear in the moments of documents, such as quality alone: the
        shifts that keep Σ p in each batch leave the logits' order a little behind the gradient's.
        """
        ranked = {
            "logits": self.logits_N,
            "gradient": self.gradient_N / (self.step_size.scale or 1.0),
        }
        best = {name: self._value_of(logits) for name, logits in ranked.items()}
        return ranked["gradient" if best["gradient"] > best["logits"] else "logits"]

    def _value_of(self, logits_N: Tensor) -> float:
        mask = top_mask(logits_N, int(self.num_selected)).to(torch.float32)
        moments = moments_of(self.data, mask, self.order, self.data.product)
        return float(joint_value(self.terms, moments))
