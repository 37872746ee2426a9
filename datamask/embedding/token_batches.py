"""Batches of texts with about the same number of tokens.

A batch is as wide as its longest text, and shorter texts are padded with tokens that the model
computes for nothing. Texts are therefore sorted by token count, and a batch is filled up to a
number of tokens, padding included: short texts make large batches, long ones small batches, and the
memory of a batch stays the same. The batches depend on the counts alone.
"""

from __future__ import annotations

import numpy as np

TOKENS_AT = {length: f"tokens_at_{length}" for length in (64, 128, 256, 512)}
"""Metrics of the tokens at values of max_tokens whose cost the report compares."""


def token_batches(counts: np.ndarray, most_tokens: int) -> list[np.ndarray]:
    """Sort texts into batches of at most *most_tokens*, padding included.

    Args:
        counts: tokens of each text, at least 1; shape N.
        most_tokens: maximum per batch. A longer text is a batch of its own.

    Returns:
        The places of the texts of each batch, longest texts first, so that a batch that does not
        fit on the device is found at once.
    """
    order = np.argsort(-counts, kind="stable")
    batches = []
    start = 0
    while start < len(order):
        # The first text of a batch is its longest.
        size = max(1, most_tokens // max(int(counts[order[start]]), 1))
        batches.append(order[start : start + size])
        start += size
    return batches


def token_metrics(
    counts: np.ndarray, whole: np.ndarray, batches: list[np.ndarray]
) -> dict[str, int]:
    """Tokens of texts: computed, with padding, before cutting, and at other maximum lengths.

    Args:
        counts: tokens of each text after it was cut; shape N.
        whole: tokens of each text before; shape N.
        batches: places of the texts of each batch.

    Returns:
        `speed.TOKEN_METRICS`; `cut` counts the texts that were cut.
    """
    at_lengths = {name: np.minimum(whole, length).sum() for length, name in TOKENS_AT.items()}
    sums = {"tokens": counts.sum(), "whole_tokens": whole.sum(), "cut": (whole > counts).sum()}
    sums["padded_tokens"] = sum(len(batch) * counts[batch].max() for batch in batches)
    return {name: int(value) for name, value in (sums | at_lengths).items()}
