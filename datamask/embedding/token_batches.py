"""Which texts go through the model together: of about the same number of tokens, and so many.

A batch is as wide as its longest text, so whatever is shorter is padded with tokens that the model
computes in vain. Texts are therefore sorted by their token counts, and a batch is filled up to a
number of tokens, padding included, not of texts: short texts make large batches, long ones small
ones, and the memory of a batch stays what it is. The batches follow from the counts alone.
"""

from __future__ import annotations

import numpy as np


def token_batches(counts: np.ndarray, most_tokens: int) -> list[np.ndarray]:
    """Sort texts into batches of at most so many tokens, padding included.

    Args:
        counts: tokens of each text, at least 1; shape N.
        most_tokens: of a batch. A text with more is a batch by itself.

    Returns:
        The places of the texts of each batch, the longest texts first: what does not fit on the
        device is known at once.
    """
    order = np.argsort(-counts, kind="stable")
    batches = []
    start = 0
    while start < len(order):
        # Sorted by falling count, the first text of a batch is as wide as the batch.
        size = max(1, most_tokens // max(int(counts[order[start]]), 1))
        batches.append(order[start : start + size])
        start += size
    return batches


def padded_tokens(counts: np.ndarray, batches: list[np.ndarray]) -> int:
    """Tokens that the model computes, padding included.

    Args:
        counts: tokens of each text, shape N.
        batches: places of the texts of each.
    """
    return sum(len(batch) * int(counts[batch].max()) for batch in batches)
