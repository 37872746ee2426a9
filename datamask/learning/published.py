"""The published logit of a document: its marginal gain at the final mask, minus the threshold.

Learners use logits of their own, on an arbitrary scale. The logit that a run publishes, and that
compares documents of different shards, is

    logit_j = S · Σ_t w_t s_t / scale_t · g_t,j − threshold

with w_t the weight, s_t the sign and g_t,j the gradient of term t at the final mask for document j,
the number of documents held fixed: half of the change from a mask without j to one with it, to
second order. A term is a mean over S documents, so S times its gradient is the contribution of one
document, whatever the size of the shard. docs/method.md#logits explains what a logit of 1 means.

The threshold is midway between the gains of the S-th and the (S+1)-th best document. A gain is a
first-order estimate, and many documents can have nearly equal gains. If the mask keeps a document
below the threshold or rejects one above it, its logit is clipped to `LEAST` or 0. The mask is
therefore the documents with a logit above 0, and the first S by (logit, quality, id).

Methods that do not learn and objectives without a gradient have no gains. Their logit is the
distance from the threshold in their own ranking, as a fraction of the shard (`ranked.by_rank`).
"""

from __future__ import annotations

import numpy as np

LEAST = 2.0**-20
"""Least logit of a document of the mask (docs/log.md#numbers)."""


def threshold_of(values: np.ndarray, number: int) -> float:
    """Return the middle of the *number*-th highest value and the next; 1 beyond the only one."""
    if not len(values):
        return 0.0
    ranked = np.sort(values)[::-1]
    if number == 0:
        return float(ranked[0] + 1)
    if number == len(ranked):
        return float(ranked[-1] - 1)
    return float((ranked[number - 1] + ranked[number]) / 2)


def on_side(logits: np.ndarray, selected: np.ndarray) -> np.ndarray:
    """Clip logits of selected documents to at least `LEAST`, others to at most 0; float32."""
    sides = np.where(selected, np.maximum(logits, LEAST), np.minimum(logits, 0.0))
    # Adding 0.0 turns −0.0 into 0.0, so that equal logits have equal bits.
    return np.asarray(sides + 0.0, np.float32)
