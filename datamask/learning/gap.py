"""How far from the best possible a mask can be: a bound that holds for any method.

Where every term is `bounded` the joint objective, over 0 <= p <= 1 with Σ p = S, is concave, so it
lies below its tangent at any p: no mask exceeds F(p) + max_v <∇F(p), v − p>, and the maximum is at
the S largest entries of the gradient (the Frank–Wolfe duality gap). The bound is taken at the
learnt inclusion probabilities.
"""

from __future__ import annotations

import torch
from torch import Tensor

from datamask.learning.data import ShardData, highest_order, moments_of
from datamask.learning.expected import along, joint_value, slopes
from datamask.learning.policy import inclusion_probabilities
from datamask.objectives.protocol import MomentObjective
from datamask.objectives.weighted import WeightedObjective


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
    inclusion = inclusion_probabilities(logits_N, num_selected)
    moments = moments_of(data, inclusion, highest_order(terms))
    slope = slopes(terms, moments)
    gradient = torch.cat([along(slope, data, part, x) for part, x in data.chunks()])
    wide = gradient.to(torch.float64)
    best = wide.topk(num_selected).values.sum() - (wide * inclusion.to(torch.float64)).sum()
    bound = float(joint_value(terms, moments)) + float(best)
    return max(bound - value, 0.0) / gain
