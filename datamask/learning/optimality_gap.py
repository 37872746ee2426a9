"""Bound how far a mask is from the best one, whatever method made it.

If every term is `bounded`, the joint objective is concave over 0 <= p <= 1 with Σ p = S and lies
below its tangent at any p. No mask therefore exceeds F(p) + max_v <∇F(p), v − p>, whose maximum is
at the S largest entries of the gradient (the Frank–Wolfe duality gap). Every p gives a bound. The
tangent is steep near a mask, where learning ends, so the bound is computed at several softer
probabilities from the same logits, and the smallest one counts.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from datamask.learning.data import highest_order, moments_of
from datamask.learning.moment_gradient import along, joint_value, slopes
from datamask.learning.policy import inclusion_of, long_sum, solve_threshold
from datamask.learning.problem import Problem
from datamask.objectives.protocol import MomentObjective

# Standard deviations of the logits at which the bound is computed (docs/log.md#gap).
SOFTNESS = (1.0, 3.0, 10.0, 100.0)


def certified_gap(problem: Problem, logits_N: Tensor, value: float, gain: float) -> float | None:
    """Bound how much more any mask can gain over random, as a fraction >= 0 of this mask's gain.

    None if a term is not concave or the gain is not positive. *logits_N* are the logits before swap
    refinement, *value* is the joint objective of the mask.
    """
    terms = problem.objective.active
    for term in terms:
        concave = isinstance(term.objective, MomentObjective) and term.objective.bounded
        if not concave or term.weight < 0:
            return None
    if gain <= 0:
        return None
    spread = float(np.std(logits_N.cpu().numpy(), ddof=1)) or 1.0
    bounds = []
    for softness in SOFTNESS:
        logits = logits_N * (softness / spread)
        inclusion = inclusion_of(logits - solve_threshold(logits, problem.num_selected))
        moments = moments_of(problem.data, inclusion, highest_order(terms))
        gradient = along(slopes(terms, moments), problem.data.exact).to(torch.float64)
        best = long_sum(gradient.topk(round(long_sum(inclusion))).values)
        at = long_sum(gradient * inclusion.to(torch.float64))
        bounds.append(float(joint_value(terms, moments)) + best - at)
    return max(min(bounds) - value, 0.0) / gain
