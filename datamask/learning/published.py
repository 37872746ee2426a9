"""The published logit of a document: its marginal gain when learning has ended, less the threshold.

Learners climb on logits of their own, whose scale is whatever the climb made of it. What a run
publishes, and what shards are compared by, is

    logit_j = unit · Σ_t w_t σ_t / scale_t · g_t,j − threshold

with g_t,j the gradient of term t at the final mask for document j, its number of documents held
fixed: half of the change from a mask without j to one with it, to second order. The unit is
√(S (1 − S/N)) for scaled terms: the scale of a term is its deviation over random S-subsets, to
first order that of its gradient over single documents times √(S (1 − S/N)) (the delta method). So
logits count in deviations over the documents of the shard, whatever its size; for quality alone the
logit is (q_j − threshold) / deviation of q. For terms that are not scaled the unit is S: the
document's part in a mean over the selection.

The threshold is midway between the gains of the S-th and the (S+1)-th best document. A gain is of
first order, and many documents may have nearly the same: where the mask keeps a document below the
threshold, or leaves one above it, the logit is cut off at the mask's side, at `LEAST` or 0. So the
mask is the documents with a logit above 0, and the first S by (logit, quality, id).

Methods that do not learn, and objectives without a gradient, have no gains: their logit is the
document's distance from the threshold in their own ranking, as a share of the shard (`by_rank`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from datamask.learning.coverage import coverage_gains
from datamask.learning.data import ShardData, highest_order, moments_of, scaled_moments
from datamask.learning.moment_gradient import moment_gradient
from datamask.objectives.facility_location import FacilityLocation
from datamask.objectives.protocol import MomentObjective, Moments
from datamask.objectives.weighted import WeightedTerm

LEAST = 2.0**-20
"""Least logit of a document of the mask (docs/log.md#numbers)."""


def gains(
    data: ShardData, terms: Sequence[WeightedTerm], mask_N: Tensor, moments: Moments | None = None
) -> np.ndarray:
    """Marginal gain of every document at a mask; float64, shape N.

    Args:
        data: the shard.
        terms: weighted and scaled, of weights other than 0; of moments or facility location.
        mask_N: the documents that are selected; bool.
        moments: of the selection that the mask is a part of; None: of the mask, or where it has no
            document, of one that has as much of every document.
    """
    moment_terms = [term for term in terms if isinstance(term.objective, MomentObjective)]
    # In full precision, whatever the learner's products are made in.
    exact = replace(data, matmul="float32")
    order = highest_order(moment_terms)
    inclusion = mask_N.to(torch.float32)
    if moments is None:
        some = bool(mask_N.any())
        moments = moments_of(exact, inclusion if some else torch.ones_like(inclusion), order)
        moments = moments if some else scaled_moments(moments, 1.0)
    found = torch.zeros_like(data.quality_N)
    for term in terms:
        if isinstance(term.objective, FacilityLocation):
            found += term.factor * coverage_gains(exact, mask_N)
    if moment_terms:
        size = exact.chunk_rows
        for start in range(0, data.num_documents, size):
            rows = slice(start, min(start + size, data.num_documents))
            width = len(moments.first_D)
            features = exact.rows(rows) if width else found.new_zeros(rows.stop - start, 0)
            found[rows] += moment_gradient(
                moment_terms, moments, exact, rows, features, inclusion[rows]
            )
    return np.asarray(found.cpu().numpy(), np.float64)


def unit(num_selected: float, num_documents: float, scaled: bool) -> float:
    """What a gain is multiplied with, by S and N."""
    if not scaled:
        return num_selected
    return math.sqrt(max(num_selected * (1 - num_selected / num_documents), 0.0))


def beside_threshold(values: np.ndarray, selected: np.ndarray) -> np.ndarray:
    """Values less the threshold of their mask, each on the mask's side; shape N.

    Args:
        values: gains in their unit, shape N.
        selected: the mask; bool, shape N.
    """
    return on_side(values - threshold_of(values, int(selected.sum())), selected)


def threshold_of(values: np.ndarray, number: int) -> float:
    """Midway between the last of the *number* highest values and the next; else 1 beyond."""
    if not len(values):
        return 0.0
    ranked = np.sort(values)[::-1]
    if number == 0:
        return float(ranked[0] + 1)
    if number == len(ranked):
        return float(ranked[-1] - 1)
    return float((ranked[number - 1] + ranked[number]) / 2)


def on_side(logits: np.ndarray, selected: np.ndarray) -> np.ndarray:
    """Logits, those of selected documents at least `LEAST` and the others at most 0; float32."""
    sides = np.where(selected, np.maximum(logits, LEAST), np.minimum(logits, 0.0))
    # Zero is never negative, so that equal logits are equal bits.
    return np.asarray(sides + 0.0, np.float32)


def by_rank(order: np.ndarray, num_selected: int) -> np.ndarray:
    """Logits of a method without gains: how many documents are from one to the threshold, over N.

    Args:
        order: rows, best first; shape N.
        num_selected: S.
    """
    logits = np.empty(len(order), np.float32)
    logits[order] = (num_selected - 0.5 - np.arange(len(order))) / max(len(order), 1)
    return logits
