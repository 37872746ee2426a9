"""Scope `corpus`: shards learn separately and in parallel, yet select as one corpus.

Moment objectives depend on a selection only through sums over its documents (`Moments`), and sums
add up over shards. In a round, every shard takes the sums of the whole corpus's selection as
given, moves its own inclusion probabilities against them, and returns its own sums. The sums of
all shards are added, and the corpus applies the best share of the joint move. That share is exact
and costs nothing: moments are linear in p, so the objective on the way from the old sums to the
new ones is a function of one number. A round therefore never lowers the objective.

The first round needs no exchange: a random sample of the corpus is learned on one machine, and a
document's logit is how far its gradient at the moments of that selection is above the dual price.

Three choices keep the number of rounds low:

- A shard assumes that the others move as it does: its own change counts as many times as the shard
  goes into the corpus. Against constant sums, all shards would fill the same gap at once (compare
  CoCoA+, Ma et al. 2015, arXiv 1502.03508). Shards differ more than they agree, so that is given a
  smaller weight, until a round of which too little was applied restores the full one.
- The budget of a shard follows from one dual price for all shards: the gradient that a document
  needs to be among the S best of the corpus, estimated on a sample. A shard with more documents
  above the price gets a larger budget: of the difference, the share of the last round that was
  applied.
- Terms are divided by their standard deviation over random subsets of the corpus
  (`learning/scales.py`).
"""

from __future__ import annotations

import math
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
from datamask.learning.expected import FIRST_MOVE, Ascent, StepSize, climb_sample
from datamask.learning.moment_gradient import along_all, joint_value, slopes
from datamask.learning.policy import solve_threshold
from datamask.objectives.protocol import MomentObjective, Moments
from datamask.objectives.weighted import WeightedObjective, WeightedTerm, is_linear

PASSES = 3
"""Passes over a shard in a round (docs/log.md#rounds)."""

LEAST_BATCH, LARGEST_BATCH, BATCHES = 256, 4096, 8
"""Bounds on the documents per batch, and the least number of batches in a pass; the least batch
takes precedence (docs/log.md#rounds)."""

OWN_WEIGHT = 0.4
"""The share of the weight of a shard's own change (docs/log.md#rounds)."""

CAUTIOUS_BELOW = 0.5
"""After a round of which less than this share was applied, the full weight is used again
(docs/log.md#rounds)."""

SHARES = 40
"""The share of a round that is applied is a multiple of 1 / SHARES (docs/log.md#rounds)."""

LEAST_PART = 1e-3
"""Least share of its documents that a shard selects, and least share that it leaves out
(docs/log.md#rounds)."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """What a shard knows about all shards before a round.

    Args:
        terms: weighted and scaled.
        totals: moments of all documents.
        moments: moments of the selection, before the first round of that from the sample; their
            count is S.
        dual_price: the gradient from which a document is among the S best of the corpus.
        share: the share of the last round that was applied; None before the first.
    """

    terms: tuple[WeightedTerm, ...]
    totals: Moments
    moments: Moments
    dual_price: float
    share: float | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a shard returns.

    Args:
        logits_N: its proposed logits.
        moments: of its documents at these logits.
        step_size: length of its next moves.
    """

    logits_N: Tensor
    moments: Moments
    step_size: StepSize


def check_scope(terms: Sequence[WeightedTerm]) -> None:
    """Check that shards can learn the objective by exchanging sums.

    Raises:
        SettingsError: a term with a weight is not a function of moments.
    """
    for term in terms:
        if term.weight and not isinstance(term.objective, MomentObjective):
            raise SettingsError(
                f"selection.scope: `corpus` needs objectives that are functions of moments, and "
                f"{term.objective.name} is not; use disf, pairwise or one of your own, or scope "
                "`shard`"
            )


def dual_price_of(
    terms: Sequence[WeightedTerm], moments: Moments, sample: ShardData, share: float
) -> float:
    """The gradient that the best *share* of the sampled documents reach."""
    return float(torch.quantile(along_all(slopes(terms, moments), sample), 1 - share))


def learn_sample(
    terms: Sequence[WeightedTerm],
    totals: Moments,
    sample: ShardData,
    num_selected: float,
    generator: torch.Generator,
) -> Moments:
    """Moments, of count S, of a selection from a random sample in place of the corpus.

    Args:
        terms: weighted and scaled.
        totals: moments of all documents of the corpus.
        sample: at least one document.
        num_selected: S, of the corpus.
        generator: draws the order of the documents.
    """
    part = min(max(num_selected / float(totals.count), LEAST_PART), 1 - LEAST_PART)
    even = torch.full((sample.num_documents,), math.log(part / (1 - part)), device=sample.device)
    weight = float(totals.count) / sample.num_documents
    ascent = Ascent(sample, WeightedObjective(tuple(terms)), num_selected, even, weight=weight)
    climb_sample(ascent, generator)
    return ascent.moments


def propose(
    data: ShardData,
    corpus: Corpus,
    logits_N: Tensor,
    step_size: StepSize | None,
    generator: torch.Generator,
) -> Proposal:
    """One round in one shard.

    Args:
        data: the shard; at least one document.
        corpus: what the shard knows about all shards.
        logits_N: its present logits; Σ sigmoid over all shards is the count of `corpus.moments`.
        step_size: returned by its last round; None in the first.
        generator: draws the order of its documents.
    """
    terms = [term for term in corpus.terms if term.weight != 0]
    order = highest_order(corpus.terms)
    gradient = along_all(slopes(terms, corpus.moments), data)
    if is_linear(terms) or corpus.share is None:
        # Logits of linear terms are final in any round, because their unit is that of all shards.
        unit = sum(abs(term.factor) for term in terms) / float(corpus.moments.count)
        if not is_linear(terms):
            unit = float(gradient.std(correction=0)) / FIRST_MOVE or 1.0
        logits = (gradient - corpus.dual_price) / unit
        moments = moments_of(data, torch.sigmoid(logits), order)
        return Proposal(logits, moments, step_size or StepSize())
    before = torch.sigmoid(logits_N)
    kept = float(before.sum(dtype=torch.float64))
    wanted = int((gradient > corpus.dual_price).sum())
    kept += corpus.share * (wanted - kept)
    part = min(max(kept / data.num_documents, LEAST_PART), 1 - LEAST_PART)
    logits = logits_N - solve_threshold(logits_N, part * data.num_documents)
    moments = corpus.moments
    change = torch.sigmoid(logits) - before
    for rows, features in data.chunks():
        moments = add_moments(moments, data, rows, features, change[rows], data.product)
    weight = float(corpus.totals.count) / data.num_documents
    if corpus.share >= CAUTIOUS_BELOW:
        weight = max(1.0, OWN_WEIGHT * weight)
    ascent = Ascent(
        data,
        WeightedObjective(corpus.terms),
        float(corpus.moments.count),
        logits,
        totals=corpus.totals,
        moments=moments,
        weight=weight,
        step_size=step_size or StepSize(),
    )
    size = min(LARGEST_BATCH, data.chunk_rows, -(-data.num_documents // BATCHES))
    misplaced = (gradient > corpus.dual_price) != (before > 0.5)
    for _ in range(PASSES):
        visited = ascent.unsettled(misplaced)
        order_V = torch.randperm(len(visited), generator=generator).to(data.device)
        for batch in torch.split(visited[order_V], max(size, LEAST_BATCH)):
            ascent.climb(batch.sort().values)
        ascent.end_pass()
    return Proposal(ascent.logits_N, moments_of(data, ascent.inclusion_N, order), ascent.step_size)


def agree(
    terms: Sequence[WeightedTerm], moments: Moments, proposed: Moments, num_selected: float
) -> tuple[float, Moments]:
    """The best share of a round, in [0, 1], and the moments of the corpus after it, count S.

    Args:
        terms: weighted and scaled.
        moments: of the selection before the round.
        proposed: of the proposals of all shards together.
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
    """Logits after a share of the move from one set of inclusion probabilities to another."""
    if share in (0.0, 1.0):
        return proposed_N if share else logits_N
    inclusion = torch.sigmoid(logits_N) * (1 - share) + torch.sigmoid(proposed_N) * share
    return torch.logit(inclusion.clamp(1e-12, 1 - 1e-7))
