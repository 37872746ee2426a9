"""Scope `corpus`: shards that learn apart, at once, and still select as one corpus.

Moment objectives see a selection only through sums over its documents (`Moments`), and sums add up
over shards. So a round is: every shard takes the sums of what is selected in the whole corpus as
given, moves its own inclusion probabilities against them, and hands its own sums back; the sums of
all shards are added up, and the corpus takes as much of the common move as is best. That share is
exact and costs nothing: moments are linear in p, so the objective along the way from the old sums
to the new ones is a function of one number. Rounds therefore never make the objective worse.

What makes few rounds enough:

- A shard reckons that the others do as it does: its own change counts as often as the shard goes
  into the corpus. Moving against constants alone, all shards would fill the same gap at once
  (compare CoCoA+, Ma et al. 2015, arXiv 1502.03508). Later rounds, when shards differ more than
  they agree, count less of it; where that went too far, the next round is careful again.
- How many documents a shard may keep follows from one dual price for all: the gradient that a
  document must have to be among the S best of the corpus, read off a sample of it. A shard full of
  good text has more documents above that price and gets a larger part of the budget: all of it at
  first, later as much of the difference as was taken of the last round.
- Terms are scaled by their deviation over random subsets of the corpus (`learning/scales.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from datamask.errors import SettingsError
from datamask.learning.data import (
    ShardData,
    add_moments,
    highest_order,
    mixed_moments,
    moments_of,
    scaled_moments,
)
from datamask.learning.expected import Ascent, StepSize
from datamask.learning.moment_gradient import along, joint_value, slopes
from datamask.learning.policy import solve_threshold
from datamask.objectives.protocol import MomentObjective, Moments
from datamask.objectives.weighted import WeightedObjective, WeightedTerm

PASSES = 3
"""Passes over a shard in a round (docs/log.md#rounds)."""

LEAST_BATCH, LARGEST_BATCH, BATCHES = 256, 4096, 8
"""A pass takes at least so many batches, unless they would be smaller than the least
(docs/log.md#rounds)."""

LATER_WEIGHT = 0.4
"""What part of "the others do as I do" counts after the first round (docs/log.md#rounds)."""

CAUTIOUS_BELOW = 0.5
"""After a round of which less than this share was taken, it counts wholly again
(docs/log.md#rounds)."""

SHARES = 40
"""The share that is taken of a round is a multiple of 1 / this (docs/log.md#rounds)."""

LEAST_PART = 1e-3
"""A shard keeps at least this part of its documents in play, and at most one less it
(docs/log.md#rounds)."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """What a shard knows of all shards before a round.

    Args:
        terms: weighted and scaled.
        totals: moments of all documents.
        moments: moments of what is selected; their count is S.
        dual_price: gradient from which a document is among the S best of the corpus.
        share: how much of the last round was taken; None before the first.
    """

    terms: tuple[WeightedTerm, ...]
    totals: Moments
    moments: Moments
    dual_price: float
    share: float | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a shard hands back.

    Args:
        logits_N: where it would go.
        moments: of its documents there.
        step_size: how far its next moves may go.
    """

    logits_N: Tensor
    moments: Moments
    step_size: StepSize


def check_scope(terms: Sequence[WeightedTerm]) -> None:
    """Whether the objective can be learnt by shards that exchange sums.

    Raises:
        SettingsError: a term with a weight is no function of moments.
    """
    for term in terms:
        if term.weight and not isinstance(term.objective, MomentObjective):
            raise SettingsError(
                f"selection.scope: `corpus` needs objectives that are functions of moments, "
                f"{term.objective.name} is none; use disf, pairwise or one of your own, or scope "
                "`shard`"
            )


def dual_price_of(
    terms: Sequence[WeightedTerm], moments: Moments, sample: ShardData, share: float
) -> float:
    """The gradient that the best *share* of the sampled documents reach."""
    gradient = _gradient(terms, moments, sample)
    return float(torch.quantile(gradient, 1 - share))


def _gradient(terms: Sequence[WeightedTerm], moments: Moments, data: ShardData) -> Tensor:
    slope = slopes(terms, moments)
    if not len(moments.first_D):
        rows = slice(0, data.num_documents)
        return along(slope, data, rows, data.quality_N.new_zeros(data.num_documents, 0))
    return torch.cat([along(slope, data, part, features) for part, features in data.chunks()])


def propose(
    data: ShardData,
    corpus: Corpus,
    logits_N: Tensor,
    step_size: StepSize | None,
    generator: torch.Generator,
) -> Proposal:
    """A round in one shard.

    Args:
        data: the shard.
        corpus: what it is told.
        logits_N: where it stands; Σ sigmoid over all shards is the count of `corpus.moments`.
        step_size: of its last round; None in the first.
        generator: for the order of its documents.
    """
    terms = [term for term in corpus.terms if term.weight != 0]
    order = highest_order(corpus.terms)
    gradient = _gradient(terms, corpus.moments, data)
    if highest_order(terms) < 1:
        # Linear: the gradient says all, in the same units everywhere.
        unit = sum(abs(term.factor) for term in terms) / float(corpus.moments.count)
        logits = (gradient - corpus.dual_price) / unit
        moments = moments_of(data, torch.sigmoid(logits), order)
        return Proposal(logits, moments, step_size or StepSize())
    before = torch.sigmoid(logits_N)
    kept = float(before.sum(dtype=torch.float64))
    wanted = int((gradient > corpus.dual_price).sum())
    kept += (1.0 if corpus.share is None else corpus.share) * (wanted - kept)
    part = min(max(kept / data.num_documents, LEAST_PART), 1 - LEAST_PART)
    logits = logits_N - solve_threshold(logits_N, part * data.num_documents)
    moments = corpus.moments
    change = torch.sigmoid(logits) - before
    for rows, features in data.chunks():
        moments = add_moments(moments, data, rows, features, change[rows], data.product)
    ascent = Ascent(
        data,
        WeightedObjective(corpus.terms),
        float(corpus.moments.count),
        logits,
        totals=corpus.totals,
        moments=moments,
        weight=_weight(corpus, data.num_documents),
        step_size=step_size or StepSize(),
    )
    size = min(LARGEST_BATCH, data.chunk_rows, -(-data.num_documents // BATCHES))
    for _ in range(PASSES):
        shuffled = torch.randperm(data.num_documents, generator=generator)
        for batch in torch.split(shuffled, max(size, LEAST_BATCH)):
            ascent.climb(batch.sort().values.to(data.device))
        ascent.end_pass()
    return Proposal(ascent.logits_N, moments_of(data, ascent.inclusion_N, order), ascent.step_size)


def _weight(corpus: Corpus, num_documents: int) -> float:
    """How many times a document of this shard stands for one of the corpus."""
    weight = float(corpus.totals.count) / num_documents
    if corpus.share is None or corpus.share < CAUTIOUS_BELOW:
        return weight
    return max(1.0, LATER_WEIGHT * weight)


def agree(
    terms: Sequence[WeightedTerm], moments: Moments, proposed: Moments, num_selected: float
) -> tuple[float, Moments]:
    """The best share of a round, in [0, 1], and the corpus's moments after it, count S.

    Args:
        terms: weighted and scaled.
        moments: of what was selected before the round.
        proposed: of what the shards proposed, added up.
        num_selected: S.
    """
    active = [term for term in terms if term.weight != 0]
    start = scaled_moments(moments, num_selected)
    goal = scaled_moments(proposed, num_selected) if float(proposed.count) > 0 else start
    shares = [place / SHARES for place in range(SHARES + 1)]
    values = [float(joint_value(active, mixed_moments(start, goal, share))) for share in shares]
    share = shares[max(range(len(shares)), key=values.__getitem__)]
    return share, mixed_moments(start, goal, share)


def taken(logits_N: Tensor, proposed_N: Tensor, share: float) -> Tensor:
    """Logits of the inclusion probabilities that lie a share of the way between two."""
    if share in (0.0, 1.0):
        return proposed_N if share else logits_N
    inclusion = torch.sigmoid(logits_N) * (1 - share) + torch.sigmoid(proposed_N) * share
    return torch.logit(inclusion.clamp(1e-12, 1 - 1e-7))
