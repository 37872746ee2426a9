"""Draw masks from logits, and turn logits into the final mask.

A mask is S draws without replacement from softmax(L), which is exactly the top S of L plus
independent Gumbel noise. This works for any number of documents and any spread of logits, where
sampling from probabilities would meet category limits and underflow. Random numbers come only from
the generator that is passed in.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

DECIDED = 0.5
"""Minimum mean p of documents drawn with p that count as decided (docs/log.md#rounds)."""


def in_parts(function: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """Apply a function to each element, such as `torch.sigmoid`; equal with any number of threads.

    torch divides 2¹⁵ values or more between its threads, and rounds the last few of each thread
    differently. Arithmetic and square roots are exact, so they need no parts.
    """
    parts = [function(part) for part in torch.split(values.reshape(-1), 2**14)]
    return torch.cat(parts).view(values.shape)


def inclusion_of(logits: Tensor) -> Tensor:
    """Return the inclusion probabilities p = sigmoid(L), in the dtype of the logits."""
    return in_parts(torch.sigmoid, logits)


def long_sum(values: Tensor) -> float:
    """Sum a vector in float64, the same with any number of threads (see `in_parts`)."""
    parts = [part.sum(dtype=torch.float64) for part in torch.split(values, 2**14)]
    return float(torch.stack(parts).sum())


def gumbel_top_s(
    logits_B: Tensor, num_selected: int, num_masks: int, generator: torch.Generator
) -> Tensor:
    """Draw masks of exactly `num_selected` ones; bool, shape (num_masks, B).

    Noise is drawn on the generator's device, so a seed gives the same masks on every device.
    """
    shape = (num_masks, logits_B.shape[0])
    # torch's exponential is never 0, unlike a uniform number, so its logarithm is finite.
    noise = torch.empty(shape, device=generator.device).exponential_(generator=generator)
    keys = logits_B.to(torch.float32) - in_parts(torch.log, noise).to(logits_B.device)
    masks = torch.zeros(shape, dtype=torch.bool, device=logits_B.device)
    return masks.scatter_(1, keys.topk(num_selected, dim=1, sorted=False).indices, True)


def top_s(
    logits: np.ndarray, quality: np.ndarray, id_order: np.ndarray, num_selected: int
) -> np.ndarray:
    """Return the final mask, bool, shape N: highest logits, then quality, then rank by id."""
    selected = np.zeros(len(logits), dtype=bool)
    selected[np.lexsort((id_order, -quality, -logits))[:num_selected]] = True
    return selected


def top_mask(logits_N: Tensor, num_selected: int) -> Tensor:
    """Return the mask of the highest logits during learning, ties unspecified; bool, shape N."""
    mask = torch.zeros_like(logits_N, dtype=torch.bool)
    mask[logits_N.topk(num_selected).indices] = True
    return mask


def expected_mask(logits_N: Tensor, is_drawn: bool) -> Tensor:
    """Select as many documents as are expected, Σ p with p = sigmoid(L): the highest p, or drawn.

    A drawn mask is a systematic sample (Madow and Madow 1944) in the order of the documents: a
    document is in if the sum of p up to it, plus a half, passes a whole number. Its sums over
    documents are near the expected sums even where no p is near 0 or 1. There, the documents of the
    highest p are alike, and their sums are far from them (`exchange.is_better_drawn`). Logits are
    on the CPU.
    """
    inclusion = inclusion_of(logits_N.to(torch.float64))
    if not is_drawn:
        return top_mask(inclusion, round(long_sum(inclusion)))
    passed = (inclusion.cumsum(0) + 0.5).floor()
    return passed.diff(prepend=passed.new_zeros(1)) > 0


def is_undecided(logits_N: Tensor) -> bool:
    """Return True if documents drawn with p = sigmoid(L) would have a mean p below `DECIDED`."""
    inclusion = inclusion_of(logits_N.to(torch.float64))
    return long_sum(inclusion.square()) < DECIDED * long_sum(inclusion)


def solve_threshold(
    logits_N: Tensor,
    num_selected: float,
    start: float | None = None,
    weight_N: Tensor | None = None,
) -> float:
    """Solve Σ w sigmoid(L − tau) = `num_selected` for tau, by bracketed Newton steps.

    *num_selected* is strictly between 0 and Σ w; *start* is a guess; *weight_N* is w, positive, 1
    each if None.
    """
    weight_N = torch.ones_like(logits_N) if weight_N is None else weight_N
    share = num_selected / long_sum(weight_N)
    shift = float(torch.logit(torch.tensor(share, dtype=torch.float64)))
    low, high = float(logits_N.min()) - shift, float(logits_N.max()) - shift
    tau = min(max(start if start is not None else (low + high) / 2, low), high)
    for _ in range(60):
        inclusion = inclusion_of(logits_N - tau)
        excess = long_sum(weight_N * inclusion) - num_selected
        if abs(excess) <= 1e-6 * num_selected:
            break
        low, high = (tau, high) if excess > 0 else (low, tau)
        slope = long_sum(weight_N * inclusion * (1 - inclusion))
        step = tau + excess / slope if slope > 0 else low - 1
        tau = step if low < step < high else (low + high) / 2
    return tau


def initial_logits(init: str, quality: np.ndarray) -> np.ndarray:
    """Return `uniform`: zeros; `quality`: log of q rescaled into [0.1, 1]; float32, shape N.

    The rescaling is this project's choice: z-scored quality has no logarithm, and 0.1 keeps the
    worst document within reach.
    """
    span = np.ptp(quality) if len(quality) else 0.0
    if init == "uniform" or span == 0:
        return np.zeros(len(quality), dtype=np.float32)
    rescaled = 0.1 + 0.9 * (quality - quality.min()) / span
    return np.asarray(np.log(rescaled), dtype=np.float32)
