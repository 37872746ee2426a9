"""The `expected` estimator: maximise the expected objective, without drawing masks.

Every document is in the subset independently with probability p_i = sigmoid(L_i), Σ p = S. Moment
objectives are evaluated at the expected moments of the whole shard, which are kept as state;
facility location has no moments and is learned by `datamask.learning.coverage`.

A step is mirror ascent on a batch: the logits of the batch move along the gradient and are shifted
so that Σ p of the batch stays the same. One more evaluation of the objective, a function of D x D
numbers, gives the best fraction of the move: the maximum of the parabola through value, slope and
value after the move. That fraction damps the move and sets the length of the next one, so no
learning rate needs tuning. Each batch sees the moves of earlier batches.

If a pass is expensive (a large shard, second moments), a random sample is learned first, and
each document stands for several of the shard. In the first pass over the shard, the sample stands
for the documents not yet visited, so each document moves by a gradient at nearly the final moments.
Later passes visit the documents whose p is not yet near 0 or 1, a minority.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from datamask.learning import policy
from datamask.learning.data import ShardData, add_moments, highest_order, moments_of, raw_values
from datamask.learning.moment_gradient import derivatives, joint_value, mean_along
from datamask.learning.problem import Curve, Problem
from datamask.objectives.protocol import Moments
from datamask.objectives.weighted import WeightedObjective

LEAST_BATCH, LARGEST_BATCH = 2048, 8192
"""Maximum number of documents in a batch. Smaller batches cost more in fixed work (D x D per step)
than they save; larger ones move too many documents by one gradient (docs/log.md#ascent-batches)."""

SAMPLE, FEWEST_SAMPLES, SAMPLE_PASSES = 8192, 4, 3
"""A shard of at least FEWEST_SAMPLES times SAMPLE documents begins with a sample, in SAMPLE_PASSES
passes (docs/log.md#sampled-start)."""

FIRST_MOVE, LEAST_SAMPLE_MOVE = 4.0, 8.0
"""Then each document moves by FIRST_MOVE, unless the sample's own moves have become shorter than
LEAST_SAMPLE_MOVE (docs/log.md#sampled-start)."""

SETTLED, LEAST_UNSETTLED = 0.01, 256
"""A document is settled if its p, or 1 − p, is below this fraction of the mean. A pass visits all
documents if fewer than LEAST_UNSETTLED are unsettled (docs/log.md#sampled-start)."""

LONGEST_MOVE, GROWTH, LAST_LONGEST_MOVE = 3.0, 3.0, 1e7
"""Longest move of the first pass, in standard deviations of the gradient, its growth per pass, and
its maximum: p must approach 0 or 1 in the end, but not before the moments have settled, and logits
must stay numbers in float32 however many passes there are (docs/log.md#ascent-moves)."""

MOST_CHANGE = 2.0
"""Maximum factor by which a move grows or shrinks from step to step (docs/log.md#ascent-moves)."""

LEAST_CHANGE = 1e-3
"""Smaller changes of p, as a fraction of the mean p, stay in the logits: applying them costs as
much as large ones (docs/log.md#ascent-moves)."""

ROWS_AT_ONCE = 128
"""The number of changes that are applied is a multiple of this (docs/log.md#memory)."""

PASSES_TO_STOP = 2
"""Number of passes whose gain decides whether learning has settled (docs/log.md#stopping)."""


def learn(problem: Problem, logits_N: Tensor, curve: Curve) -> tuple[Tensor, int, str]:
    """Learn logits; return logits, steps taken and the reason to stop: `steps` or `tolerance`.

    A step covers the fraction `selection.batch_fraction` of the shard, in batches of at most
    `LARGEST_BATCH` documents. All terms are moment objectives.
    """
    data, objective, selection = problem.data, problem.objective, problem.selection
    num_selected, generator = problem.num_selected, torch.Generator().manual_seed(problem.seed)
    centred = logits_N - policy.solve_threshold(logits_N, num_selected)
    number, sampled = data.num_documents, None
    if number >= FEWEST_SAMPLES * SAMPLE and highest_order(objective.active) == 2:
        sampled = _from_sample(problem, centred, generator)
    totals = problem.totals
    ascent = sampled or Ascent(data, objective, num_selected, centred, totals=totals)
    estimate = ascent.moments if sampled else None
    share = min(number, max(round(selection.batch_fraction * number), LEAST_BATCH))
    masks: list[float] = []
    expectations: list[float] = []
    step = 0
    while step < selection.steps:
        visited = ascent.unsettled()
        visited = visited[torch.randperm(len(visited), generator=generator).to(data.device)]
        for rows in _even_parts(visited, share)[: selection.steps - step]:
            for batch in _even_parts(rows, min(LARGEST_BATCH, data.chunk_rows)):
                batch = batch.sort().values
                if estimate:
                    ascent.enter(batch, estimate)
                else:
                    ascent.climb(batch)
            step += 1
        ascent.end_pass()
        estimate = None
        mask = policy.top_mask(ascent.logits_N, num_selected)
        raw = raw_values(objective.terms, data, mask)
        curve.record(step, raw)
        masks.append(objective.join(raw))
        expectations.append(ascent.value)
        # The value of a mask may rise by chance, if a few documents change it more than learning
        # does. So the expected value must have settled too.
        both = (_has_settled(v, ascent.initial, selection.tolerance) for v in (masks, expectations))
        if all(both):
            return ascent.best_logits(), step, "tolerance"
    return ascent.best_logits(), step, "steps"


def _even_parts(rows: Tensor, most: int) -> tuple[Tensor, ...]:
    """Divide rows into parts of nearly equal size, at most *most* rows each."""
    return torch.tensor_split(rows, -(-len(rows) // most))


def _from_sample(problem: Problem, logits_N: Tensor, generator: torch.Generator) -> Ascent | None:
    """Start an ascent at the moments of a learned random sample.

    Returns None if the objective bends so strongly that line searches made the sample's moves
    short: in one long move, many documents would settle on the wrong side.
    """
    data, objective, num_selected = problem.data, problem.objective, problem.num_selected
    order = torch.randperm(data.num_documents, generator=generator)
    rows = order[:SAMPLE].sort().values.to(data.device)
    weight = data.num_documents / SAMPLE
    sample = Ascent(data.part(rows), objective, num_selected, logits_N[rows], weight=weight)
    climb_sample(sample, generator)
    if sample.step_size.move < LEAST_SAMPLE_MOVE:
        return None
    ascent = Ascent(
        data, objective, num_selected, logits_N, totals=sample.totals, moments=sample.moments
    )
    ascent.initial = sample.initial
    return ascent


def climb_sample(sample: Ascent, generator: torch.Generator) -> None:
    """Learn a sample until its moments can stand for the moments of all documents."""
    number = sample.data.num_documents
    for _ in range(SAMPLE_PASSES):
        for batch in _even_parts(torch.randperm(number, generator=generator), LEAST_BATCH):
            sample.climb(batch.sort().values.to(sample.data.device))
        sample.end_pass()


def _has_settled(values: list[float], initial: float, tolerance: float) -> bool:
    """Return True if the last passes raised the best value by a tolerably small part of its gain.

    The gain is over the initial moments or, if lower, the first mask: in a small shard, S documents
    have correlations that the moments scaled to S lack, and no mask may reach the initial value.
    """
    if tolerance <= 0 or len(values) <= PASSES_TO_STOP:
        return False
    best, before = max(values), max(values[:-PASSES_TO_STOP])
    return best - before <= tolerance * (best - min(initial, values[0]))


@dataclass(frozen=True, slots=True)
class StepSize:
    """Limits of the next moves.

    Args:
        move: length of the next move, in units of `scale`.
        longest: longest move of the present pass.
        scale: standard deviation of the gradient of the first batch; 0 before it.
    """

    move: float = LONGEST_MOVE
    longest: float = LONGEST_MOVE
    scale: float = 0.0


def unsettled(inclusion_N: Tensor, share: float) -> Tensor:
    """Return the rows whose p may still change much; *share* is the mean p."""
    inside = inclusion_N > SETTLED * share
    return (inside & (1 - inclusion_N > SETTLED * (1 - share))).nonzero()[:, 0]


class Ascent:
    """Inclusion probabilities of a shard and their moments, raised batch by batch.

    Args:
        data: the shard.
        objective: the joint objective.
        num_selected: S, of the shard or of the corpus that contains it.
        logits_N: initial logits.
        totals: moments of all documents; None: computed from the shard.
        moments: moments of the selection at these logits; None: computed from the shard.
        weight: how often a document counts in *moments* when it moves; a number or shape N.
        step_size: length of the first moves.
        share: selected fraction of all documents; None for the mean p of these.

    `dual`, if not None, adds up what moves along the gradient have added to logits: Σ length · ∇F
    over the steps, each with its part of the documents.
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
        self.inclusion_N = policy.inclusion_of(self.logits_N)
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
        self.totals, self.moments = totals, moments.scaled(num_selected)
        self.value = self.initial = float(joint_value(self.terms, self.moments))

    def end_pass(self) -> None:
        """Allow longer moves, after every document has been in a batch."""
        longest = min(self.step_size.longest * GROWTH, LAST_LONGEST_MOVE)
        self.step_size = replace(self.step_size, longest=longest)

    def unsettled(self) -> Tensor:
        """Return the rows whose p may still change much; all rows if these are few."""
        rows = unsettled(self.inclusion_N, self.share)
        everything = torch.arange(len(self.inclusion_N), device=rows.device)
        return rows if len(rows) >= LEAST_UNSETTLED else everything

    def climb(self, rows: Tensor) -> None:
        """Move one batch, and update the moments.

        With Δ the changes of p, moments are linear in the applied fraction t of the move, and the
        objective is nearly a parabola, whose *second* coefficient follows from its value at t = 1:

            F(t) = F(0) + t · rising + t² · second        rising = Σ w Δ g

        The batch moves to its maximum, t = rising / (−2 second), limited to [0, 1].
        """
        move = self.step_size.move
        proposed = self._propose(rows, move)
        if proposed is None:
            return
        slope, plain, curvature, logits = proposed
        before = self.inclusion_N[rows]
        some, change = self._noticeable(torch.sigmoid(logits) - before)
        before, plain, curvature = before[some], plain[some], curvature[some]
        counted = self.weight_N[rows[some]] * change
        # Measure the value after the whole move, and find the best fraction of the move.
        after, value = self._with(rows[some], counted)
        if not math.isfinite(value):
            # A weighted move that is too long can remove more than there is.
            self.step_size = replace(self.step_size, move=move / MOST_CHANGE)
            return
        first = float((counted * (plain - mean_along(slope, self.moments))).sum())
        alone = 0.5 * float((curvature * counted * change).sum())
        second = value - self.value - first - alone
        rising = first + float((counted * (0.5 - before) * curvature).sum())
        # If the parabola has no maximum, move as far as allowed.
        share = max(rising / (-2 * second), 0.0) if second < 0 else MOST_CHANGE**2
        if self.dual is not None:
            length = min(share, 1.0) * move / self.step_size.scale * len(rows) / len(self.logits_N)
            self.dual = self.dual.mapped(lambda dual, change: dual + length * change, slope)
        growth = min(max(share**0.5, 1 / MOST_CHANGE), MOST_CHANGE)
        self.step_size = replace(self.step_size, move=min(move * growth, self.step_size.longest))
        # Accept this fraction of the move.
        if share >= 1:
            self.inclusion_N[rows[some]] += change
            self.moments, self.value = after, value
        elif share > 0:
            mixed = (before + share * change).clamp(1e-12, 1 - 1e-7)
            logits[some] = torch.logit(mixed)
            self.inclusion_N[rows[some]] = mixed
            self.moments = self.moments.mixed(after, share)
            self.value = float(joint_value(self.terms, self.moments))
        if share > 0:
            self.logits_N[rows] = logits

    def enter(self, rows: Tensor, estimate: Moments) -> None:
        """Visit a batch for the first time: move it by `FIRST_MOVE` and count it in the moments.

        Until now, its part of *estimate*, the moments of the sample, stood for it there. *estimate*
        may count fewer or more documents than the shard: only its direction is used.
        """
        proposed = self._propose(rows, FIRST_MOVE)
        if proposed is None:
            return
        self.logits_N[rows] = proposed[-1]
        weight, before = self.weight_N[rows], self.inclusion_N[rows]
        share = float((weight * before).sum(dtype=torch.float64)) / float(estimate.count)
        some, inclusion = self._noticeable(torch.sigmoid(proposed[-1]))
        left = estimate.mapped(lambda total: share * total)
        self.moments, self.value = self._with(rows[some], weight[some] * inclusion, left)
        self.inclusion_N[rows] = 0.0
        self.inclusion_N[rows[some]] = inclusion

    def _propose(self, rows: Tensor, move: float) -> tuple[Moments, Tensor, Tensor, Tensor] | None:
        """Return ∇F, <∇F, δ_j> and δ_jᵀ ∇²F δ_j of a batch, and logits L' along g, shape B.

            L' = L + move / scale · g − τ        g_j = <∇F, δ_j − mean δ> + (1/2 − p_j) δ_jᵀ ∇²F δ_j

        τ keeps Σ w p. None if every p is 0 or 1, at least after rounding.
        """
        slope, plain, curvature = derivatives(self.terms, self.moments, self.data, rows)
        before, weight, logits = self.inclusion_N[rows], self.weight_N[rows], self.logits_N[rows]
        gradient = plain - mean_along(slope, self.totals) + (0.5 - before) * curvature
        self.gradient_N[rows] = gradient
        if self.step_size.scale == 0.0:
            deviation = float(gradient.std()) if len(rows) > 1 else 0.0
            self.step_size = replace(self.step_size, scale=deviation or 1.0)
        moved = logits + move / self.step_size.scale * gradient
        total = float((weight * before).sum(dtype=torch.float64))
        if not 0 < total < float(weight.sum(dtype=torch.float64)):
            return None
        moved -= policy.solve_threshold(moved, total, float((moved - logits).mean()), weight)
        return slope, plain, curvature, moved

    def _noticeable(self, change_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return places and values of the changes of p above `LEAST_CHANGE`, and of a few more."""
        size = change_B.abs()
        number = int((size > LEAST_CHANGE * self.share).sum())
        number = min(-(-number // ROWS_AT_ONCE) * ROWS_AT_ONCE, len(size))
        positions = size.topk(number).indices.sort().values
        return positions, change_B[positions]

    def _with(
        self, rows: Tensor, weights: Tensor, without: Moments | None = None
    ) -> tuple[Moments, float]:
        after = add_moments(self.moments, self.data, rows, weights, exact=False)
        if without:
            after = after.mapped(torch.sub, without)
        after = after.scaled(self.num_selected)
        return after, float(joint_value(self.terms, after))

    def best_logits(self) -> Tensor:
        """Return the logits or, if its top S is the better mask, the last gradient or a drawn mask.

        The gradient is better for terms that are linear in the moments: the shifts that keep Σ p of
        each batch leave the order of the logits slightly behind. A mask is drawn if the best sums
        leave documents undecided (`policy.expected_mask`).
        """
        ranked = [self.logits_N, self.gradient_N / (self.step_size.scale or 1.0)]
        if policy.is_undecided(self.logits_N):
            drawn = policy.expected_mask(self.logits_N.cpu(), True).to(self.logits_N)
            spread = self.logits_N.max() - self.logits_N.min()
            ranked.append(self.logits_N + drawn * (1 + spread))

        def value(logits_N: Tensor) -> float:
            mask = policy.top_mask(logits_N, int(self.num_selected)).to(torch.float32)
            moments = moments_of(self.data, mask, self.order, exact=False)
            return float(joint_value(self.terms, moments))

        return max(ranked, key=value)
