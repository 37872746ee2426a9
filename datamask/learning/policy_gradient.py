"""The `policy_gradient` estimator: draw masks, reward them, move the logits towards the best.

Each step draws G masks of a random part of the shard. With the rewards f_j,
A_j = (f_j − mean) / (std + eps) and L ← L + lr · (1/G) Σ_j A_j m_j, because Σ A_j = 0 cancels the
softmax term of ∇ ln P. The learning rate falls linearly (arXiv 2512.24265, section 3). The
estimator needs only values, so it serves any objective. Equal rewards give a step of exactly zero.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from datamask.learning.data import raw_values
from datamask.learning.policy import gumbel_top_s, top_mask
from datamask.learning.problem import Curve, Problem, State
from datamask.objectives.products import times_vector

# This keeps the division finite if rewards are nearly equal (docs/log.md#policy-gradient).
EPSILON = 1e-8
# A batch selects at least this many documents; small shards are therefore used whole.
LEAST_SELECTED = 16
# Windows per training: two in a row with little gain end learning (docs/log.md#stopping).
WINDOWS = 20


def learning_rate(step: int, steps: int, initial_lr: float, final_lr: float) -> float:
    """Fall linearly from `initial_lr` at step 0 to `final_lr` at the last step."""
    return initial_lr + (final_lr - initial_lr) * step / max(steps - 1, 1)


def advantages(rewards_G: Tensor) -> Tensor:
    """Centre rewards and divide by their standard deviation; zeros if all are equal."""
    if bool((rewards_G == rewards_G[0]).all()):
        return torch.zeros_like(rewards_G)
    return (rewards_G - rewards_G.mean()) / (rewards_G.std() + EPSILON)


def direction(masks_GB: Tensor, rewards_G: Tensor) -> Tensor:
    """Return (1/G) Σ_j A_j m_j, shape B."""
    products = times_vector(masks_GB.to(rewards_G.dtype).T, advantages(rewards_G))
    return products / masks_GB.shape[0]


def batch_shape(num_documents: int, num_selected: int, batch_fraction: float) -> tuple[int, int]:
    """Return the documents in a batch, and how many a mask selects (S scaled, at least 1)."""
    least = -(-LEAST_SELECTED * num_documents // max(num_selected, 1))
    size = min(num_documents, max(round(batch_fraction * num_documents), least))
    selected = round(num_selected * size / num_documents)
    return size, min(max(selected, 1), size)


def learn(problem: Problem, logits_N: Tensor, curve: Curve) -> tuple[Tensor, int, str]:
    """Learn logits; return logits, steps taken and the reason to stop: `steps` or `tolerance`."""
    data, objective, selection = problem.data, problem.objective, problem.selection
    generator = torch.Generator().manual_seed(problem.seed)
    size, batch_selected = batch_shape(
        data.num_documents, problem.num_selected, selection.batch_fraction
    )
    interval = max(1, selection.steps // 200)
    window = max(50, selection.steps // WINDOWS)
    means: list[float] = []
    total, first = 0.0, 0
    if kept := curve.state:
        first, total, means = int(kept["step"]), float(kept["total"]), kept["means"].tolist()
        logits_N = torch.from_numpy(kept["logits"]).to(data.device)
        generator.set_state(torch.from_numpy(kept["generator"]))

    def state() -> State:
        return {
            "step": np.asarray(step),
            "total": np.asarray(total, np.float64),
            "means": np.asarray(means, np.float64),
            "logits": logits_N.cpu().numpy(),
            "generator": generator.get_state().numpy(),
        }

    whole = data.everything() if size == data.num_documents else None
    rows = torch.arange(size, device=data.device)
    for step in range(first, selection.steps):
        curve.keep(state)
        if whole is None:
            order = torch.randperm(data.num_documents, generator=generator)[:size]
            rows = order.sort().values.to(data.device)
        batch = whole or data.batch(rows)
        masks = gumbel_top_s(logits_N[rows], batch_selected, selection.rollouts, generator)
        rewards = objective.values(masks, batch)
        rate = learning_rate(step, selection.steps, selection.initial_lr, selection.final_lr)
        logits_N[rows] += rate * direction(masks, rewards)
        if step % interval == 0 or step == selection.steps - 1:
            # Of the whole shard: values of a batch, of fewer documents, are on another scale.
            mask = top_mask(logits_N, problem.num_selected)
            curve.record(step + 1, raw_values(objective.terms, data, mask))
        total += float(rewards.mean())
        if selection.tolerance > 0 and (step + 1) % window == 0:
            means.append(total / window)
            total = 0.0
            if _has_settled(means, selection.tolerance):
                return logits_N, step + 1, "tolerance"
    return logits_N, selection.steps, "steps"


def _has_settled(means: list[float], tolerance: float) -> bool:
    # Ask two windows in a row, because one may fall short by the luck of its batches.
    if len(means) < 4:
        return False
    gain = max(means) - means[0]
    return all(means[-k] - means[-k - 1] < tolerance * gain for k in (1, 2))
