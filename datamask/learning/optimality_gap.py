"""How far from the best possible a mask can be: a bound that holds for any method.

Where every term is `bounded` the joint objective, over 0 <= p <= 1 with Σ p = S, is concave, so it
lies below its tangent at any p: no mask exceeds F(p) + max_v <∇F(p), v − p>, and the maximum is at
the S largest entries of the gradient (the Frank–Wolfe duality gap). Any p gives a bound. Learning
ends near a mask, where the tangent is steep; so the bound is also taken at softer probabilities
from the same logits, and the least counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from datamask.learning.data import ShardData, highest_order, moments_of
from datamask.learning.moment_gradient import along, joint_value, slopes
from datamask.learning.policy import inclusion_probabilities
from datamask.objectives.protocol import MomentObjective
from datamask.objectives.weighted import WeightedObjective, WeightedTerm

# Deviation of the logits at which the bound is taken (docs/log.md#gap).
SOFTNESS = (1.0, 3.0, 10.0, 100.0)


def certified_gap(
    data: ShardData,
    objective: WeightedObjective,
    logits_N: Tensor,
    num_selected: int,
    value: float,
    gain: float,
) -> float | None:
    """Most by which any mask can exceed this one, as a share of its gain over random.

    Args:
        data: the shard.
        objective: the joint objective.
        logits_N: learnt logits, before the exchange pass.
        num_selected: S, strictly between 0 and N.
        value: the joint objective of the mask.
        gain: its gain over random subsets.

    Returns:
        None where a term is not concave, or where nothing was gained.
    """
    terms = objective.active
    for term in terms:
        concave = isinstance(term.objective, MomentObjective) and term.objective.bounded
        if not concave or term.weight < 0:
            return None
    if gain <= 0:
        return None
    spread = float(logits_N.std()) or 1.0
    bounds = [
        _bound(data, terms, inclusion_probabilities(logits_N * (softness / spread), num_selected))
        for softness in SOFTNESS
    ]
    return max(min(bounds) - value, 0.0) / gain


def _bound(data: ShardData, terms: Sequence[WeightedTerm], inclusion_N: Tensor) -> float:
    moments = moments_of(data, inclusion_N, highest_order(terms))
    slope = slopes(terms, moments)
    # In full precision, whatever the learner's products are made in.
    exact = replace(data, matmul="float32")
    gradient = torch.cat([along(slope, exact, part, x) for part, x in data.chunks()])
    wide = gradient.to(torch.float64)
    best = wide.topk(round(float(inclusion_N.sum(dtype=torch.float64)))).values.sum()
    at = (wide * inclusion_N.to(torch.float64)).sum()
    return float(joint_value(terms, moments)) + float(best - at)
