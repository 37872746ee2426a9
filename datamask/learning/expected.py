"""The `expected` estimator: maximise the expected objective, without drawing masks.

Every document is in the subset independently with probability p_i = sigmoid(L_i), Σ p = S. Moment
objectives are evaluated at the expected moments of the whole shard, which are kept as state;
facility location has no moments and is learned by `datamask.learning.coverage`.

A step is mirror ascent on a batch: the logits of the batch move along the gradient and are shifted
so that Σ p of the batch stays the same. Moments are linear in p and the objective is a function of
D x D numbers, so one more evaluation gives the best share of the move: the maximum of the parabola
through value, slope and value after the move. That share damps the move and sets the length of the
next one, so no learning rate needs tuning. Each batch sees the moves of those before it.

If a pass is expensive (a large shard, second moments), a random sample is learned first, in which a
document counts as many times as the shard is larger. In the first pass over the shard, the sample
stands for the documents not yet visited, so each document moves by a gradient at nearly the final
moments. Later passes visit the documents whose p is not yet near 0 or 1, a minority. A sample whose
line searches had to shorten its moves is not used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from datamask.learning import coverage
from datamask.learning.data import (
    Problem,
    ShardData,
    add_moments,
    highest_order,
    map_moments,
    mixed_moments,
    moments_of,
    raw_values,
    scaled_moments,
)
from datamask.learning.moment_gradient import derivatives, joint_value, mean_along
from datamask.learning.policy import (
    expected_mask,
    inclusion_of,
    is_undecided,
    solve_threshold,
    top_mask,
)
from datamask.learning.resuming import Curve, State
from datamask.objectives.facility_location import FacilityLocation
from datamask.objectives.protocol import Moments
from datamask.objectives.weighted import WeightedObjective

# Smaller batches cost more in fixed work (D x D per step) than they save; larger ones move too
# many documents by one gradient (docs/log.md#ascent-batches).
LEAST_BATCH, LARGEST_BATCH = 2048, 8192
# A shard of at least FEWEST_SAMPLES times SAMPLE documents begins with a sample, in SAMPLE_PASSES
# passes; then each document moves by FIRST_MOVE, unless the sample's own moves have become shorter
# than LEAST_SAMPLE_MOVE (docs/log.md#sampled-start).
SAMPLE, FEWEST_SAMPLES, SAMPLE_PASSES, FIRST_MOVE, LEAST_SAMPLE_MOVE = 8192, 4, 3, 4.0, 8.0
# A document is settled if its p, or 1 − p, is below this share of the mean. A pass visits all
# documents if fewer than LEAST_UNSETTLED are not (docs/log.md#sampled-start).
SETTLED, LEAST_UNSETTLED = 0.01, 256
# Longest move of the first pass, in standard deviations of the gradient, and its growth per pass:
# p must approach 0 or 1 in the end, but not before the moments have settled.
# See docs/log.md#ascent-moves.
LONGEST_MOVE, GROWTH = 3.0, 3.0
# Most by which a move grows or shrinks from step to step (docs/log.md#ascent-moves).
MOST_CHANGE = 2.0
# Smaller changes of p, as a share of the mean p, stay in the logits: applying them costs as much as
# large ones (docs/log.md#ascent-moves).
LEAST_CHANGE = 1e-3
# The number of changes that are applied is rounded up to a multiple of this (docs/log.md#memory).
ROWS_AT_ONCE = 128
# See docs/log.md#stopping.
PASSES_TO_STOP = 2


def learn(problem: Problem, logits_N: Tensor, curve: Curve) -> tuple[Tensor, int, str]:
    """Learn logits; returns them, the steps taken and why it stopped: `steps` or `tolerance`.

    A step is a share `selection.batch_fraction` of the shard, in batches of at most `LARGEST_BATCH`
    documents. For facility location see `coverage.learn`.
    """
    data, objective, selection = problem.data, problem.objective, problem.selection
    num_selected, generator = problem.num_selected, torch.Generator().manual_seed(problem.seed)
    if any(isinstance(term.objective, FacilityLocation) for term in objective.active):
        return coverage.learn(problem, logits_N, curve)
    centred = logits_N - solve_threshold(logits_N, num_selected)
    number = data.num_documents
    sampled = None
    if number >= FEWEST_SAMPLES * SAMPLE and highest_order(objective.active) == 2:
        sampled = _from_sample(problem, centred, generator, curve.state)
    ascent = sampled or Ascent(data, objective, num_selected, centred)
    share = min(number, max(round(selection.batch_fraction * number), LEAST_BATCH))
    values: list[float] = []
    step = 0
    if kept := curve.state:
        step, values = int(kept["step"]), kept["values"].tolist()
        generator.set_state(torch.from_numpy(kept["generator"]))
        ascent.restore(kept)

    def state() -> State:
        return ascent.state() | {
            "step": np.asarray(step),
            "sampled": np.asarray(sampled is not None),
            "values": np.asarray(values, np.float64),
            "generator": generator.get_state().numpy(),
        }

    while step < selection.steps:
        estimate = ascent.moments if sampled and step == 0 else None
        visited = ascent.unsettled()
        visited = visited[torch.randperm(len(visited), generator=generator).to(data.device)]
        for rows in _even_parts(visited, share):
            if step == selection.steps:
                break
            for batch in _even_parts(rows, min(LARGEST_BATCH, data.chunk_rows)):
                ascent.climb(batch.sort().values, estimate)
            step += 1
        ascent.end_pass()
        mask = top_mask(ascent.logits_N, num_selected)
        raw = raw_values(objective.terms, data, mask)
        curve.record(step, raw)
        values.append(objective.join(raw))
        if _has_settled(values, ascent.initial, selection.tolerance):
            return ascent.best_logits(), step, "tolerance"
        curve.keep(state)
    return ascent.best_logits(), step, "steps"


def _even_parts(rows: Tensor, most: int) -> tuple[Tensor, ...]:
    """Rows in parts of nearly the same size, at most *most*."""
    return torch.tensor_split(rows, -(-len(rows) // most))


def _from_sample(
    problem: Problem, logits_N: Tensor, generator: torch.Generator, kept: State
) -> Ascent | None:
    """An ascent at the moments of a learned random sample, which is not learned to resume.

    None if the objective bends so strongly that line searches made the sample's moves short: in one
    long move, many documents would settle on the wrong side.
    """
    data, objective, num_selected = problem.data, problem.objective, problem.num_selected
    order = torch.randperm(data.num_documents, generator=generator)
    rows = order[:SAMPLE].sort().values.to(data.device)
    weight = data.num_documents / SAMPLE
    sample = Ascent(data.part(rows), objective, num_selected, logits_N[rows], weight=weight)
    if not kept:
        climb_sample(sample, generator)
    if not (kept["sampled"] if kept else sample.step_size.move >= LEAST_SAMPLE_MOVE):
        return None
    ascent = Ascent(
        data, objective, num_selected, logits_N, totals=sample.totals, moments=sample.moments
    )
    ascent.initial = sample.initial
    return ascent


def climb_sample(sample: Ascent, generator: torch.Generator) -> None:
    """Learn a sample, from the start, to the point where its moments stand for all documents'."""
    number = sample.data.num_documents
    for _ in range(SAMPLE_PASSES):
        for batch in _even_parts(torch.randperm(number, generator=generator), LEAST_BATCH):
            sample.climb(batch.sort().values.to(sample.data.device))
        sample.end_pass()


def _has_settled(values: list[float], initial: float, tolerance: float) -> bool:
    """Whether the last passes raised the best mask by less than the tolerated share of its gain.

    The gain is over the initial moments or, if lower, the first mask: in a small shard, S documents
    have correlations that the moments scaled to S lack, and no mask may reach the initial value.
    """
    if tolerance <= 0 or len(values) <= PASSES_TO_STOP:
        return False
    best, before = max(values), max(values[:-PASSES_TO_STOP])
    return best - before <= tolerance * (best - min(initial, values[0]))


@dataclass(frozen=True, slots=True)
class StepSize:
    """How far moves may go.

    Args:
        move: length of the next move, in units of `scale`.
        longest: longest move of the present pass.
        scale: standard deviation of the gradient of the first batch; 0 before it.
    """

    move: float = LONGEST_MOVE
    longest: float = LONGEST_MOVE
    scale: float = 0.0


def unsettled(inclusion_N: Tensor, share: float) -> Tensor:
    """Rows whose p may still change much, where *share* is its mean."""
    inside = inclusion_N > SETTLED * share
    return (inside & (1 - inclusion_N > SETTLED * (1 - share))).nonzero()[:, 0]


class Ascent:
    """Inclusion probabilities of a shard and their moments, raised batch by batch.

    Args:
        data: the shard.
        objective: the joint objective.
        num_selected: S, of the shard or of the corpus that contains it.
        logits_N: initial logits.
        totals: moments of all documents; None for those of the shard.
        moments: moments of the selection at these logits; None for those of the shard.
        weight: how often a document counts in *moments* when it moves; of all or, shape N, of each.
        step_size: length of the first moves.
        share: of all documents that is selected; None for the mean p of these.

    Attributes:
        dual: if not None, what moves along the gradient have added to logits: Σ length · ∇F over
            the steps, each with its part of the documents.
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
        weight: float | Tensor = 1.0,
        step_size: StepSize = StepSize(),
        share: float | None = None,
    ) -> None:
        self.data, self.objective, self.num_selected = data, objective, num_selected
        self.terms = objective.active
        self.order = highest_order(objective.terms)
        self.logits_N, self.step_size = logits_N, step_size
        self.inclusion_N = inclusion_of(self.logits_N)
        self.weight_N = torch.ones_like(self.inclusion_N) * weight
        self.dual: Moments | None = None
        mean = self.inclusion_N.mean(dtype=torch.float64)
        self.share = float(mean if share is None else share)
        self.gradient_N = torch.zeros_like(self.inclusion_N)
        if totals is None:
            ones = torch.ones_like(self.inclusion_N)
            totals = moments_of(data, ones, self.order, exact=False)
        if moments is None and bool((logits_N == logits_N[0]).all()):
            moments = totals
        elif moments is None:
            moments = moments_of(data, self.inclusion_N, self.order, exact=False)
        self.totals, self.moments = totals, scaled_moments(moments, num_selected)
        self.value = self.initial = float(joint_value(self.terms, self.moments))

    def end_pass(self) -> None:
        """Allow longer moves after every document has been in a batch."""
        self.step_size = replace(self.step_size, longest=self.step_size.longest * GROWTH)

    def unsettled(self) -> Tensor:
        """Rows whose p may still change much (`unsettled`); all rows if these are few."""
        rows = unsettled(self.inclusion_N, self.share)
        everything = torch.arange(len(self.inclusion_N), device=rows.device)
        return rows if len(rows) >= LEAST_UNSETTLED else everything

    def climb(self, rows: Tensor, estimate: Moments | None = None) -> None:
        """Move one batch and update the moments.

        Args:
            rows: the documents.
            estimate: what stands for them in the moments, in any size, instead of themselves; they
                then move by `FIRST_MOVE`, without a line search.
        """
        data, terms = self.data, self.terms
        slope, plain, curvature = derivatives(terms, self.moments, data, rows)
        before = self.inclusion_N[rows]
        gradient = plain - mean_along(slope, self.totals) + (0.5 - before) * curvature
        self.gradient_N[rows] = gradient
        if self.step_size.scale == 0.0:
            deviation = float(gradient.std()) if len(rows) > 1 else 0.0
            self.step_size = replace(self.step_size, scale=deviation or 1.0)
        step_size, weight = self.step_size, self.weight_N[rows]
        logits = self.logits_N[rows]
        move = FIRST_MOVE if estimate else step_size.move
        moved = logits + move / step_size.scale * gradient
        total = float((weight * before).sum(dtype=torch.float64))
        if not 0 < total < float(weight.sum(dtype=torch.float64)):
            return  # every p of the batch is 0 or 1, at least after rounding
        moved -= solve_threshold(moved, total, float((moved - logits).mean()), weight)
        change = torch.sigmoid(moved) - (0.0 if estimate else before)
        size = change.abs()
        number = int((size > LEAST_CHANGE * self.share).sum())
        number = min(-(-number // ROWS_AT_ONCE) * ROWS_AT_ONCE, len(size))
        some = size.topk(number).indices.sort().values
        part, amount = rows[some], change[some]
        counted = weight[some] * amount
        after = add_moments(self.moments, data, part, counted, exact=False)
        if estimate:
            share = total / float(estimate.count)
            after = map_moments(partial(torch.sub, alpha=share), after, estimate)
        after = scaled_moments(after, self.num_selected)
        value = float(joint_value(terms, after))
        if estimate:
            self.logits_N[rows], self.moments, self.value = moved, after, value
            self.inclusion_N[rows] = 0.0
            self.inclusion_N[part] = amount
            return
        if not math.isfinite(value):
            # A weighted move can remove more than there is: it was too long.
            self.step_size = replace(step_size, move=step_size.move / MOST_CHANGE)
            return
        first = float((counted * (plain[some] - mean_along(slope, self.moments))).sum())
        alone = 0.5 * float((curvature[some] * counted * amount).sum())
        second = value - self.value - first - alone
        rising = first + float((counted * (0.5 - before[some]) * curvature[some]).sum())
        # The maximum of the parabola; as far as allowed if it has none.
        top = rising / (-2 * second) if second < 0 else MOST_CHANGE**2
        if self.dual is not None:
            length = min(max(top, 0.0), 1.0) * step_size.move / step_size.scale
            length *= len(rows) / len(self.logits_N)
            self.dual = map_moments(lambda sum_, one: sum_ + length * one, self.dual, slope)
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
        """Everything that the next move depends on."""
        step_size, moments = self.step_size, self.moments
        numbers = (self.value, self.initial, step_size.move, step_size.longest, step_size.scale)
        tensors = {
            "logits": self.logits_N,
            "inclusion": self.inclusion_N,
            "gradient": self.gradient_N,
            "count": moments.count,
            "quality": moments.quality,
            "first": moments.first_D,
            "second": moments.second_DD,
            **{f"score:{name}": total for name, total in moments.scores.items()},
        }
        arrays = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
        return {**arrays, "numbers": np.asarray(numbers, np.float64)}

    def restore(self, state: State) -> None:
        """Return to the point at which `state` was made."""

        def put(name: str) -> Tensor:
            return torch.from_numpy(state[name]).to(self.data.device)

        self.value, self.initial, *step_size = state["numbers"].tolist()
        self.step_size = StepSize(*step_size)
        self.logits_N, self.inclusion_N = put("logits"), put("inclusion")
        self.gradient_N = put("gradient")
        scores = {name: put(f"score:{name}") for name in self.moments.scores}
        self.moments = Moments(put("count"), put("quality"), scores, put("first"), put("second"))

    def best_logits(self) -> Tensor:
        """The logits or, if its top S is the better mask, the last gradient or a drawn mask.

        The gradient is better for terms that are linear in the moments, such as quality alone: the
        shifts that keep Σ p of each batch leave the order of the logits slightly behind. A mask is
        drawn if the best sums leave documents undecided (`policy.expected_mask`).
        """
        ranked = [self.logits_N, self.gradient_N / (self.step_size.scale or 1.0)]
        if is_undecided(self.logits_N):
            drawn = expected_mask(self.logits_N.cpu(), True).to(self.logits_N)
            spread = self.logits_N.max() - self.logits_N.min()
            ranked.append(self.logits_N + drawn * (1 + spread))

        def value(logits_N: Tensor) -> float:
            mask = top_mask(logits_N, int(self.num_selected)).to(torch.float32)
            moments = moments_of(self.data, mask, self.order, exact=False)
            return float(joint_value(self.terms, moments))

        return max(ranked, key=value)
