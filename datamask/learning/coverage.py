"""Facility location for the `expected` estimator: lazy greedy in blocks of similar documents.

Facility location is submodular, and what a document adds depends on its near neighbours alone. So
the shard is cut into blocks of similar documents, in each of which all similarities fit in the
working set, and greedy selection runs in each: take the document with the largest gain, gains only
fall, so a document whose last known gain is too small need not be looked at again (Minoux 1978).
The gains of all blocks are then compared: the S largest of the shard are the mask, so that a block
that needs more documents gets more. That is what one greedy run over the shard would choose if
blocks did not help to cover each other. Cost per document does not grow with the shard.

Moment terms next to it enter by their gradient at the present moments: exactly for terms that are
linear, such as quality; others are taken again at the moments of the mask so found.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from datamask.learning.data import (
    ShardData,
    highest_order,
    mixed_moments,
    moments_of,
    raw_values,
    scaled_moments,
)
from datamask.learning.moment_gradient import along, mean_along, slopes
from datamask.learning.partition import similar_blocks
from datamask.learning.policy import top_mask
from datamask.learning.policy_gradient import Record
from datamask.learning.resuming import FROM_START, Resuming, State
from datamask.objectives.facility_location import FacilityLocation
from datamask.objectives.protocol import MomentObjective, Moments
from datamask.objectives.weighted import WeightedObjective, WeightedTerm

# See docs/log.md#coverage.
BLOCK = 4096
# Documents whose gain is looked at together (docs/log.md#coverage).
AT_ONCE = 32
# A block may take this many times its even share of the selection (docs/log.md#coverage).
MOST_SHARE = 3
# A block's similarities are looked at in so many parts where copies of them are needed.
# See docs/log.md#coverage.
PARTS = 8
# Rounds where a term beside facility location is not linear (docs/log.md#coverage).
ROUNDS = 4


def learn(
    data: ShardData,
    objective: WeightedObjective,
    num_selected: int,
    logits_N: Tensor,
    record: Record,
    resuming: Resuming = FROM_START,
) -> tuple[Tensor, int, str]:
    """Logits whose top S cover the shard; a step is one round over all blocks.

    Args:
        data: the shard.
        objective: facility location and any moment terms.
        num_selected: S, strictly between 0 and N.
        logits_N: initial logits, for the first point of the curve.
        record: told the terms' raw values after every round.
        resuming: what was done before a kill, by block.
    """
    terms = objective.active
    moment_terms = [t for t in terms if isinstance(t.objective, MomentObjective)]
    factor = sum(t.factor for t in terms if isinstance(t.objective, FacilityLocation))
    order = highest_order(moment_terms)
    # Gains of each round begun, and how many blocks of the last are done.
    history = [torch.from_numpy(gains).to(data.device) for gains in resuming.state.get("gains", ())]
    blocks_done = int(resuming.state.get("blocks", 0))
    resumed = len(history)
    if not resumed:
        record(0, raw_values(objective.terms, data, top_mask(logits_N, num_selected)))
    blocks = similar_blocks(data, _largest_block(data))
    ones = torch.ones_like(logits_N)
    moments = scaled_moments(moments_of(data, ones, order), num_selected) if moment_terms else None
    rounds = ROUNDS if order > 0 else 1
    best, best_value = logits_N, -torch.inf

    def state() -> State:
        gains = np.stack([gains.cpu().numpy() for gains in history])
        return {"gains": gains, "blocks": np.asarray(blocks_done)}

    for step in range(1, rounds + 1):
        linear_gain = torch.zeros_like(logits_N)
        if moments is not None:
            linear_gain = _linear_gain(moment_terms, data, moments)
        if step > resumed:
            history.append(torch.zeros_like(logits_N))
            blocks_done = 0
        gains = history[step - 1]
        while step >= resumed and blocks_done < len(blocks):
            rows = blocks[blocks_done]
            depth = num_selected
            if len(blocks) > 1:
                depth = MOST_SHARE * -(-num_selected * len(rows) // data.num_documents)
            similarity = _similarity(data, rows)
            gains[rows] = greedy_gains(
                similarity, linear_gain[rows], factor / data.num_documents, depth
            )
            blocks_done += 1
            resuming.keep(state)
        mask = top_mask(gains, num_selected)
        raw = raw_values(objective.terms, data, mask)
        if step >= resumed:
            record(step, raw)
        value = objective.join(raw)
        if value > best_value:
            best, best_value = gains, value
        if moments is not None:
            found = moments_of(data, mask.to(torch.float32), order)
            moments = mixed_moments(moments, found, 1 / step)
    return _standardised(best, num_selected), rounds, "complete"


def greedy_gains(similarity_BB: Tensor, linear_gain_B: Tensor, weight: float, depth: int) -> Tensor:
    """What each document added when greedy took it, or would add at most; shape B.

    Args:
        similarity_BB: symmetric cosines within a block.
        linear_gain_B: what each document is worth beside its coverage.
        weight: of the sum over documents of the similarity to the nearest taken one; below 0 is
            taken as it is, though greedy has no guarantee then.
        depth: most documents to take.

    The gains of the documents in the order in which they were taken never rise, and none that was
    not taken has a larger one, so the largest gains are the first taken.
    """
    covered = torch.full_like(linear_gain_B, -1.0)
    bound = linear_gain_B + weight * (similarity_BB + 1).sum(1)
    gains = bound.clone()
    taken = 0
    ceiling = torch.inf
    while taken < min(depth, len(linear_gain_B)):
        number = min(AT_ONCE + 1, len(bound))
        values, rows = bound.topk(number)
        looked = rows[: max(1, number - 1)]
        fresh = linear_gain_B[looked] + weight * (similarity_BB[looked] - covered).clamp(min=0).sum(
            1
        )
        fresh[values[: len(looked)] == -torch.inf] = -torch.inf  # taken already
        bound[looked] = fresh
        at = int(fresh.argmax())
        rest = float(values[-1]) if number > 1 and len(looked) < number else -torch.inf
        if float(fresh[at]) < rest:
            continue
        row = looked[at]
        # Rounding may lift a sum by a hair; the order must not depend on it.
        ceiling = min(ceiling, float(fresh[at]))
        gains[row] = ceiling
        bound[row] = -torch.inf
        covered = torch.maximum(covered, similarity_BB[row])
        taken += 1
    left = bound > -torch.inf
    gains[left] = bound[left].clamp(max=ceiling)
    return gains


def marginal_coverage(similarity_RC: Tensor, base_R: Tensor | float, chosen_C: Tensor) -> Tensor:
    """Gain of each candidate that is not chosen, loss of each chosen one; sums over R, shape C.

    Args:
        similarity_RC: of documents with candidates.
        base_R: each document's best among what else is selected; -1 where nothing is.
        chosen_C: bool.
    """
    inside = torch.where(chosen_C, similarity_RC, -2.0)
    base = torch.full_like(inside[:, :1], -1.0)
    base[:, 0] = base_R
    top = torch.cat([inside, base], 1).topk(2, dim=1)
    best, second = top.values[:, 0], top.values[:, 1]
    gain = (similarity_RC - best[:, None]).clamp(min=0).sum(0)
    loss = torch.zeros(len(chosen_C) + 1, device=gain.device)
    loss.index_add_(0, top.indices[:, 0], best - second)
    return torch.where(chosen_C, loss[:-1], gain)


def coverage_gains(data: ShardData, mask_N: Tensor) -> Tensor:
    """Marginal gain in the mean similarity to the nearest document of a mask, shape N.

    Within blocks of similar documents, as it is learnt.
    """
    gains = torch.zeros_like(data.quality_N)
    for rows in similar_blocks(data, _largest_block(data)):
        similarity = _similarity(data, rows)
        for part in torch.split(similarity, max(1, len(rows) // PARTS)):
            gains[rows] += marginal_coverage(part, -1.0, mask_N[rows])
    return gains / data.num_documents


def _largest_block(data: ShardData) -> int:
    # One block, which is exact, where its similarities take half of the working set at most.
    whole = int((data.working_set_bytes / 8) ** 0.5)
    return data.num_documents if data.num_documents <= whole else max(2, min(BLOCK, whole))


def _similarity(data: ShardData, rows: Tensor) -> Tensor:
    parts = torch.split(rows, data.chunk_rows)
    features = [data.rows(part) for part in parts]
    if len(features) == 1:
        return data.product(features[0], features[0].T)
    similarity = torch.empty(len(rows), len(rows), device=data.device)
    start = 0
    for one in features:
        stop = start + len(one)
        similarity[start:stop] = torch.cat([data.product(one, other.T) for other in features], 1)
        start = stop
    return similarity


def _linear_gain(terms: Sequence[WeightedTerm], data: ShardData, moments: Moments) -> Tensor:
    slope = slopes(terms, moments)
    linear_gain = torch.cat([along(slope, data, part, x) for part, x in data.chunks()])
    return linear_gain - mean_along(slope, moments)


def _standardised(gains_N: Tensor, num_selected: int) -> Tensor:
    """Gains less the threshold, in units of their median distance from it.

    The first documents of a block have gains far above all others: a deviation would be theirs.
    """
    threshold = gains_N.topk(num_selected).values[-1]
    distance = (gains_N - threshold).abs()
    unit = distance[distance > 0].median() if bool((distance > 0).any()) else distance.max() + 1
    return (gains_N - threshold) / unit
