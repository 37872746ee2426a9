"""Scope `corpus` in one round: every document is judged once, in one pass over the vectors.

Round 1 judges all documents. It writes what later stages would read vectors for: the gains, at the
selection that the sample predicts, and the moments of all documents, of those that it expects to be
selected, and of those that it expects to be of top quality. Stage `outcome` needs only the vectors
of the few documents that the threshold decides otherwise, so its sums are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from datamask.config.compute import Compute
from datamask.learning import exchange, published
from datamask.learning.data import map_moments, moments_of
from datamask.learning.policy import expected_mask
from datamask.objectives.protocol import Moments
from datamask.objectives.weighted import WeightedTerm
from datamask.runs.run import Run
from datamask.selection.documents import (
    ShardDocuments,
    read_documents,
    read_quality,
    within_memory,
)
from datamask.selection.sampling import Drawn
from datamask.selection.sums import (
    Row,
    first_logits,
    learner_data,
    moment_order,
    moment_row,
    read_lists,
    read_moments,
    tokens_of,
)


def predict(
    drawn: Drawn,
    judge: exchange.Judge,
    terms: Sequence[WeightedTerm],
    totals: Moments,
    num_selected: float,
    compute: Compute,
) -> tuple[Moments, dict[str, float]]:
    """What a judge will select of the corpus, from all documents drawn.

    Returns:
        Moments of the selection, count S; the `share` of the round that will be applied, whether
        masks are `drawn`, its `dual_price`, the gain and quality of the last document that is
        selected (`last_gain`, `last_quality`), and of the last of as many documents of top quality
        (`least_quality`).
    """
    data, share = drawn.data(0, None, compute), num_selected / float(totals.count)
    proposed, judged = judge.judge(data, moment_order(drawn.run))
    applied, moments = exchange.agree(terms, totals, judged, num_selected)
    price = exchange.dual_price_of(terms, moments, data, share)
    even = torch.logit(torch.full_like(proposed, min(max(share, 1e-6), 1 - 1e-6)))
    expected = exchange.taken(even, proposed, applied)
    is_drawn = exchange.is_better_drawn(terms, data, expected, num_selected)
    mask = expected_mask(expected, is_drawn)
    gains = published.gains(data, terms, mask, moments) - price
    sides, quality = published.on_side(gains, mask.numpy()), data.quality_N.numpy()
    number = max(round(share * len(quality)), 1)
    place = np.lexsort((quality, sides))[-number]
    last = {
        "last_gain": float(sides[place]),
        "last_quality": float(quality[place]),
        "least_quality": float(np.sort(quality)[-number]),
    }
    return moments, {"share": applied, "drawn": is_drawn, "dual_price": price, **last}


def _predicted(run: Run) -> dict[str, float]:
    found: dict[str, float] = run.receipt("round_total", 0).metrics["predicted"]
    return found


def _predicted_mask(run: Run, proposed: np.ndarray) -> np.ndarray:
    found, before = _predicted(run), first_logits(run, len(proposed))
    expected = exchange.taken(before, torch.tensor(proposed), found["share"])
    mask: np.ndarray = expected_mask(expected, bool(found["drawn"])).numpy()
    return mask


def _expected_masks(
    run: Run, mask: np.ndarray, gains: np.ndarray, quality: np.ndarray
) -> dict[int, np.ndarray]:
    """Which documents a threshold over all shards will probably keep, and which quality alone."""
    last = _predicted(run)
    sides = published.on_side(gains.astype(np.float64) - last["dual_price"], mask)
    ties = (sides == last["last_gain"]) & (quality >= last["last_quality"])
    selected = (sides > last["last_gain"]) | ties
    return {Row.SELECTED: selected, Row.TOP_QUALITY: quality >= last["least_quality"]}


def later_needs(
    run: Run,
    shard: int,
    documents: ShardDocuments,
    terms: tuple[WeightedTerm, ...],
    proposed: np.ndarray,
    compute: Compute,
) -> tuple[list[dict[str, Any]], np.ndarray]:
    """What later stages need of a shard's vectors.

    Args:
        run: the run.
        shard: its number.
        documents: all of the shard.
        terms: weighted and scaled.
        proposed: logits that the round proposes.
        compute: how to compute.

    Returns:
        Moments of each `Row` as rows, and the gains of the documents at the predicted selection,
        float32.
    """
    mask = _predicted_mask(run, proposed)
    active = [term for term in terms if term.weight != 0]

    def work(compute: Compute) -> tuple[list[dict[str, Any]], np.ndarray]:
        data = learner_data(documents, compute)
        predicted = read_moments(run, "round_total", 0, 2)[0]
        predicted = map_moments(lambda one: one.to(data.device), predicted)
        on_device = torch.from_numpy(mask).to(data.device)
        gains = published.gains(data, active, on_device, predicted).astype(np.float32)
        masks = _expected_masks(run, mask, gains, documents.quality)
        masks[Row.ALL] = np.ones(len(gains), bool)
        tokens, order, rows = tokens_of(run, shard), moment_order(run), []
        for row in Row:
            # As everywhere, sums over all documents are not in full precision.
            product = data.product if row == Row.ALL else torch.matmul
            moments = moments_of(data, _weights(masks[row], data.device), order, product)
            rows.append(moment_row(moments, float(tokens @ masks[row])))
        return rows, gains

    return within_memory(shard, compute, work)


def _weights(values: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32)).to(device)


def sums_of_outcome(
    run: Run, shard: int, masks: dict[str, np.ndarray], compute: Compute
) -> list[dict[str, Any]]:
    """Moments of the documents in masks, as rows.

    Args:
        run: the run.
        shard: its number.
        masks: `selected` and `top_quality`.
        compute: how to compute.
    """
    run.receipt("round", shard)
    found = read_lists(run, "round", ("proposed", "gains"), shard)
    mask = _predicted_mask(run, found["proposed"])
    expected = _expected_masks(run, mask, found["gains"], read_quality(run, shard).quality)
    pairs = [(Row.SELECTED, masks["selected"]), (Row.TOP_QUALITY, masks["top_quality"])]
    changes = [mask.astype(np.float32) - expected[row] for row, mask in pairs]
    places = np.flatnonzero(np.any(changes, axis=0))
    documents = read_documents(run, shard, compute, "outcome", places)

    def add_up(compute: Compute) -> list[dict[str, Any]]:
        data = learner_data(documents, compute)
        found = []
        for (row, _), change in zip(pairs, changes, strict=True):
            weights = _weights(change[places], data.device)
            added = moments_of(data, weights, moment_order(run))
            added = map_moments(lambda one: one.cpu(), added)
            found.append(map_moments(torch.add, read_moments(run, "round", shard, row)[0], added))
        return [moment_row(one) for one in found]

    return within_memory(shard, compute, add_up)
