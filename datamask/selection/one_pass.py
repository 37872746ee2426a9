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
from datamask.learning.data import ShardData, map_moments
from datamask.learning.moment_gradient import along
from datamask.learning.policy import expected_mask
from datamask.objectives.protocol import Moments
from datamask.objectives.weighted import WeightedTerm
from datamask.runs.run import Run
from datamask.selection.documents import ShardDocuments, on_device, read_documents, read_quality
from datamask.selection.sampling import Drawn
from datamask.selection.sums import (
    Row,
    all_moments,
    first_logits,
    moment_order,
    moment_row,
    read_lists,
    read_moments,
    scaled_terms,
    tokens_of,
    weighed_moments,
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


def _predicted_mask(run: Run, proposed: np.ndarray) -> np.ndarray:
    found = run.receipt("round_total", 0).metrics["predicted"]
    before = first_logits(run, len(proposed))
    expected = exchange.taken(before, torch.tensor(proposed), found["share"])
    mask: np.ndarray = expected_mask(expected, bool(found["drawn"])).numpy()
    return mask


def _expected_masks(
    run: Run, mask: np.ndarray, gains: np.ndarray, documents: ShardDocuments
) -> tuple[np.ndarray, np.ndarray]:
    """Which documents a threshold over all shards will probably keep, and which quality alone."""
    last = run.receipt("round_total", 0).metrics["predicted"]
    sides = published.on_side(gains.astype(np.float64) - last["dual_price"], mask)
    quality = documents.quality - documents.centre
    ties = (sides == last["last_gain"]) & (quality >= last["last_quality"])
    return (sides > last["last_gain"]) | ties, quality >= last["least_quality"]


def judge_shard(
    run: Run, shard: int, compute: Compute
) -> tuple[torch.Tensor, list[dict[str, Any]]]:
    """The logits that the round proposes, and what later stages need of a shard's vectors.

    Returns:
        Logits, float32, shape N; moments of each `Row` as rows, the first with the `gains` of the
        documents at the predicted selection.
    """
    documents, tokens = read_documents(run, shard, compute, "round"), tokens_of(run, shard)
    terms = [term for term in scaled_terms(run) if term.weight != 0]
    threshold = run.receipt("round_total", 0).metrics["threshold"]

    def work(data: ShardData) -> tuple[torch.Tensor, list[dict[str, Any]]]:
        slope, predicted = (
            map_moments(lambda one: one.to(data.device), read_moments(run, "round_total", [0], row))
            for row in (1, 2)
        )
        proposed = along(slope, data).cpu() - threshold
        mask = _predicted_mask(run, proposed.numpy())
        selected_N = torch.from_numpy(mask).to(data.device)
        gains = published.gains(data, terms, selected_N, predicted).astype(np.float32)
        masks = _expected_masks(run, mask, gains, documents)
        selected, best = (
            moment_row(weighed_moments(run, data, one), float(tokens @ one)) for one in masks
        )
        everything = moment_row(all_moments(run, data), float(tokens.sum()))
        return proposed, [selected | {"gains": gains}, everything, best]

    return on_device(shard, documents, compute, work)


def sums_of_outcome(
    run: Run, shard: int, masks: dict[str, np.ndarray], compute: Compute
) -> list[dict[str, Any]]:
    """Moments of the documents in the masks `selected` and `top_quality`, as rows."""
    run.receipt("round", shard)
    found = read_lists(run, "round", ("proposed", "gains"), shard)
    mask = _predicted_mask(run, found["proposed"])
    expected = _expected_masks(run, mask, found["gains"], read_quality(run, shard))
    pairs = zip((masks["selected"], masks["top_quality"]), expected, strict=True)
    changes = [mask.astype(np.float32) - one for mask, one in pairs]
    places = np.flatnonzero(np.any(changes, axis=0))
    documents = read_documents(run, shard, compute, "outcome", places)

    def add_up(data: ShardData) -> list[dict[str, Any]]:
        rows = []
        for row, change in zip((Row.SELECTED, Row.TOP_QUALITY), changes, strict=True):
            added = weighed_moments(run, data, change[places])
            written = read_moments(run, "round", [shard], row)
            rows.append(moment_row(map_moments(lambda a, b: a + b.cpu(), written, added)))
        return rows

    return on_device(shard, documents, compute, add_up)
