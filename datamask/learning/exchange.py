"""Scope `corpus`: shards learn separately and in parallel, yet select as one corpus.

Moment objectives depend on a selection only through sums over its documents (`Moments`), and sums
add up over shards. In a round, every shard takes the sums of the whole corpus's selection as given,
moves its own inclusion probabilities against them, and returns its own sums. The sums of all shards
are added, and the corpus applies the best fraction of the joint move. Moments are linear in p, so
the objective on the way is a function of one number, and a round never lowers it.

A random sample of the corpus keeps the number of rounds low:

- The first round needs no exchange. The sample is learned on one machine, which adds up gradients
  times step lengths, the dual variable of mirror ascent. This sum is a function of a document: its
  value, minus the threshold that keeps S documents, is the document's logit.
- In later rounds, a shard learns its own documents and stand-ins together: a random sample of other
  shards, if possible disjoint from the first. Each stand-in counts for several documents. Against
  constant sums, all shards would fill the same gap at once (compare CoCoA+, Ma et al. 2015, arXiv
  1502.03508). Documents of the shard and stand-ins compete for the same budget, so the shard's own
  budget follows from its documents.

Throughout, *terms* are weighted and scaled (`learning.scales`, over the corpus), *totals* are the
moments of all documents, *num_selected* is S of the corpus, and *share* is the selected fraction of
the documents, in (0, 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from datamask.errors import SettingsError
from datamask.learning import policy
from datamask.learning.data import ShardData, add_moments, highest_order, moments_of, zero_moments
from datamask.learning.expected import Ascent, StepSize, climb_sample
from datamask.learning.moment_gradient import along, joint_value, slopes
from datamask.objectives.protocol import MomentObjective, Moments
from datamask.objectives.weighted import WeightedObjective, WeightedTerm, is_linear

LEAST_BATCH, LARGEST_BATCH, BATCHES = 256, 4096, 8
"""Limits of the documents per batch, and minimum number of batches in a pass; the lower limit of
the batch takes precedence (docs/log.md#rounds)."""

PASSES = 2
"""Passes over the undecided documents in a round after the first (docs/log.md#rounds)."""

SHARES = 40
"""The fraction of a round that is applied is a multiple of 1 / SHARES (docs/log.md#rounds)."""

LEAST_PART = 1e-3
"""Minimum fraction of the sample that is selected, and minimum fraction that is left out
(docs/log.md#rounds)."""

RANDOM_PARTS = 4
"""Number of random selections of a sample that estimate the gain over random
(docs/log.md#rounds)."""


@dataclass(frozen=True, slots=True)
class Judge:
    """A logit as a function of a document: <slope, δ_j> − threshold.

    The slope has the shape of moments. The threshold keeps S documents, estimated on the sample.
    """

    slope: Moments
    threshold: float

    def judge(self, data: ShardData, order: int) -> tuple[Tensor, Moments]:
        """Compute logits of a shard's documents, float32, shape N, and their moments; one pass."""
        parts, moments = [data.quality_N[:0]], zero_moments(data, order)
        for rows in data.chunks():
            logits = along(self.slope, data, rows) - self.threshold
            moments = add_moments(moments, data, rows, policy.inclusion_of(logits))
            parts.append(logits)
        return torch.cat(parts), moments


@dataclass(frozen=True, slots=True)
class Corpus:
    """The corpus as a shard knows it before a round.

    Args:
        terms: weighted and scaled.
        totals: moments of all documents.
        moments: moments of the selection; their count is S.
        judge: gives the logits of the first round.
        excess: subtracted from logits by the next proposals, so that these expect S documents.
    """

    terms: tuple[WeightedTerm, ...]
    totals: Moments
    moments: Moments
    judge: Judge
    excess: float = 0.0

    @property
    def active(self) -> tuple[WeightedTerm, ...]:
        """The terms with a weight."""
        return WeightedObjective(self.terms).active

    def to(self, device: torch.device) -> Corpus:
        """Copy the corpus to a device."""
        judge = replace(self.judge, slope=self.judge.slope.to(device))
        totals, moments = self.totals.to(device), self.moments.to(device)
        return replace(self, totals=totals, moments=moments, judge=judge)


@dataclass(frozen=True, slots=True)
class Proposal:
    """Proposed logits of a shard's documents, the change of the moments, and the next step size."""

    logits_B: Tensor
    change: Moments
    step_size: StepSize


def check_scope(terms: Sequence[WeightedTerm]) -> None:
    """Check that shards can learn the objective by exchanging sums.

    Raises:
        SettingsError: a term with a weight is not a function of moments.
    """
    for term in terms:
        if term.weight and not isinstance(term.objective, MomentObjective):
            raise SettingsError(
                "selection.scope: `corpus` and mask models need objectives that are functions of "
                f"moments, and {term.objective.name} is not; use disf, pairwise or one of your own"
            )


def dual_price_of(
    terms: Sequence[WeightedTerm], moments: Moments, sample: ShardData, share: float
) -> float:
    """Return the gradient that the best *share* of the sampled documents reach."""
    # Rounding can make the sum of S documents larger than the sum of all.
    return float(torch.quantile(along(slopes(terms, moments), sample), max(1 - share, 0.0)))


def learn_sample(
    terms: Sequence[WeightedTerm],
    totals: Moments,
    sample: ShardData,
    num_selected: float,
    generator: torch.Generator,
) -> Judge:
    """Learn a random sample, of at least one document, in place of the corpus."""
    fraction = min(max(num_selected / float(totals.count), LEAST_PART), 1 - LEAST_PART)
    even = torch.full(
        (sample.num_documents,), math.log(fraction / (1 - fraction)), device=sample.device
    )
    weight = float(totals.count) / sample.num_documents
    ascent = Ascent(sample, WeightedObjective(tuple(terms)), num_selected, even, weight=weight)
    if is_linear(ascent.terms):
        # The gradient is the same everywhere. In this unit, logits compare between corpora.
        unit = sum(abs(term.factor) for term in ascent.terms) / num_selected
        dual = slopes(ascent.terms, ascent.moments).mapped(lambda total: total / unit)
    else:
        ascent.dual = ascent.moments.mapped(torch.zeros_like)
        climb_sample(ascent, generator)
        dual = ascent.dual
    return keeping(dual, num_selected, (sample, weight))


def keeping(slope: Moments, number: float, *samples: tuple[ShardData, float]) -> Judge:
    """Set the threshold of a judge so that it is expected to keep *number* documents.

    It keeps at least a few documents, and not all. *samples* are documents, each with how often it
    counts, that stand for the corpus.
    """
    values = torch.cat([along(slope, data) for data, _ in samples])
    weights = [values.new_full((data.num_documents,), weight) for data, weight in samples]
    weight_N = torch.cat(weights)
    total = policy.long_sum(weight_N)
    kept = min(max(number, LEAST_PART * total), (1 - LEAST_PART) * total)
    return Judge(slope, policy.solve_threshold(values, kept, weight_N=weight_N))


def gain_over_random(
    data: ShardData,
    values_N: Tensor,
    terms: Sequence[WeightedTerm],
    num_selected: float,
    share: float,
) -> tuple[float, float]:
    """Return how much the best documents of a sample gain over random ones.

    The second number is the deviation between random ones. The best documents have the highest
    values. Selections are finite samples, whose moments are scaled to S. DiSF of few documents is
    high, so they are compared with equally many random documents.
    """
    number, parts = data.num_documents, max(round(1 / share), 2)
    masks = [torch.arange(number) % parts == part for part in range(min(parts, RANDOM_PARTS))]
    masks.append(policy.top_mask(values_N, max(number // parts, 1)))
    *random, best = (_value_of(terms, data, mask, num_selected) for mask in masks)
    return best - sum(random) / len(random), float(np.std(random, ddof=1))


def _value_of(
    terms: Sequence[WeightedTerm], sample: ShardData, mask_N: Tensor, num_selected: float
) -> float:
    moments = moments_of(sample, mask_N.to(torch.float32), highest_order(terms))
    return float(joint_value(terms, moments.scaled(num_selected)))


def shortfall(
    judge: Judge,
    terms: Sequence[WeightedTerm],
    num_selected: float,
    share: float,
    own: ShardData,
    second: ShardData,
) -> float:
    """Return the fraction of its gain over random that a judge loses on documents new to it.

    The judge was learned from documents with *own* among them; *second* are equally many new ones.
    """
    before, after = (
        gain_over_random(data, along(judge.slope, data), terms, num_selected, share)[0]
        for data in (own, second)
    )
    return (before - after) / max(abs(before), 1e-12)


def propose(
    data: ShardData,
    corpus: Corpus,
    logits_B: Tensor,
    num_documents: int,
    step_size: StepSize,
    others: tuple[ShardData, Tensor],
    generator: torch.Generator,
) -> Proposal:
    """Move the documents of one shard in a round after the first.

    Args:
        data: its documents that may still move; at least one.
        corpus: what the shard knows about all shards.
        logits_B: present logits.
        num_documents: of the shard, including documents that do not move.
        step_size: returned by its last round, or the first.
        others: the stand-ins of other shards, and their present logits.
        generator: shuffles the documents.
    """
    number, (sample, sample_logits) = data.num_documents, others
    order, all_documents = highest_order(corpus.terms), float(corpus.totals.count)
    weight = torch.ones(number + sample.num_documents, device=data.device)
    weight[number:] = (all_documents - num_documents) / max(sample.num_documents, 1)
    ascent = Ascent(
        data.joined(sample),
        WeightedObjective(corpus.terms),
        float(corpus.moments.count),
        torch.cat([logits_B, sample_logits.to(logits_B)]),
        totals=corpus.totals,
        moments=corpus.moments,
        weight=weight,
        step_size=step_size,
        share=float(corpus.moments.count) / all_documents,
    )
    together = num_documents + sample.num_documents
    size = min(LARGEST_BATCH, data.chunk_rows, -(-together // BATCHES))
    for _ in range(PASSES):
        visited = ascent.unsettled()
        order_V = torch.randperm(len(visited), generator=generator).to(data.device)
        for batch in torch.split(visited[order_V], max(size, LEAST_BATCH)):
            ascent.climb(batch.sort().values)
        ascent.end_pass()
    proposed = ascent.logits_N[:number] - corpus.excess
    change = moments_of(data, policy.inclusion_of(proposed) - policy.inclusion_of(logits_B), order)
    return Proposal(proposed, change, ascent.step_size)


def agree(
    terms: Sequence[WeightedTerm], moments: Moments, proposed: Moments, num_selected: float
) -> tuple[float, Moments]:
    """Return the best fraction of a round to apply, in [0, 1], and the corpus's moments after it.

    *moments* belong to the selection before the round, *proposed* to all proposals together; the
    result's count is S.
    """
    active = [term for term in terms if term.weight != 0]
    start = moments.scaled(num_selected)
    goal = proposed.scaled(num_selected) if float(proposed.count) > 0 else start

    def value(share: float) -> float:
        return float(joint_value(active, start.mixed(goal, share)))

    share = max((step / SHARES for step in range(SHARES + 1)), key=value)
    return share, start.mixed(goal, share)


def is_better_drawn(
    terms: Sequence[WeightedTerm], sample: ShardData, logits_N: Tensor, num_selected: float
) -> bool:
    """Return True if drawing documents by their p beats keeping the documents of the highest p.

    p is the probability that a document is in the selection. Where many selections are nearly the
    best, p stays far from 0 and 1 (`policy.is_undecided`), as for pairwise similarity without
    quality. Both ways are valued on the sample, on the CPU.
    """
    active = [term for term in terms if term.weight != 0]
    if is_linear(active) or not policy.is_undecided(logits_N):
        return False
    masks = [policy.expected_mask(logits_N, is_drawn) for is_drawn in (False, True)]
    if not all(mask.any() for mask in masks):
        return False
    highest, drawn = (_value_of(active, sample, mask, num_selected) for mask in masks)
    return drawn > highest


def expecting(logits_N: Tensor, number: float) -> Tensor:
    """Shift logits so that Σ sigmoid is *number*; nearly 0 or N if that is out of reach."""
    most = len(logits_N)
    if not most:
        return logits_N
    return logits_N - policy.solve_threshold(
        logits_N, min(max(number, 1e-6 * most), (1 - 1e-6) * most)
    )


def taken(logits_N: Tensor, proposed_N: Tensor, share: float) -> Tensor:
    """Move a fraction of the way from the current probabilities to the proposed; return logits."""
    if share in (0.0, 1.0):
        return proposed_N if share else logits_N
    inclusion = (
        policy.inclusion_of(logits_N) * (1 - share) + policy.inclusion_of(proposed_N) * share
    )
    return policy.in_parts(torch.logit, inclusion.clamp(1e-12, 1 - 1e-7))
