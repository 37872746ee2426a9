"""Stages `swaps` and `swaps_total`: the rounding of inclusion probabilities, in scope `corpus`.

After the last round every shard keeps its most probable documents. Their sums differ from those
expected, and with few documents that costs some of the gain. So each shard swaps documents as if
the others' sums were as expected. All shards do so at once, and may together change too much: the
swaps are applied only if the objective of the corpus rises by all of them.
"""

from __future__ import annotations

import logging

import torch

from datamask.config.compute import Compute
from datamask.learning.data import ShardData, map_moments, moments_of, scaled_moments
from datamask.learning.moment_gradient import joint_value
from datamask.learning.policy import expected_mask, inclusion_of
from datamask.learning.swap_refinement import refine_part
from datamask.objectives.protocol import Moments
from datamask.runs import schemas
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run
from datamask.selection.documents import on_device, read_documents
from datamask.selection.rounds import (
    known_corpus,
    last_logits,
    movable,
    state_after,
    swaps_of,
)
from datamask.selection.sums import Total, moment_order, moment_row, read_moments, write_sums

logger = logging.getLogger(__name__)


def swap_shard(run: Run, shard: int, compute: Compute) -> Receipt:
    """Write `swaps/NNNNN.parquet`: what a shard would swap, and its sums with and without it."""
    rounds = run.last_round
    state = state_after(run, shard, rounds)
    logits = last_logits(run, state.logits)
    rows = movable(run, rounds + 1, logits)
    mask = expected_mask(logits, Total.read(run, rounds).drawn)[rows]
    documents = read_documents(run, shard, compute, "swaps", rows)

    def work(data: ShardData) -> tuple[torch.Tensor, list[Moments]]:
        inclusion = inclusion_of(state.logits[rows])
        refined = _refined(run, data, mask, inclusion)
        changes = [(one.float() - inclusion).to(data.device) for one in (refined, mask)]
        added = [moments_of(data, one, moment_order(run)) for one in changes]
        return refined, [map_moments(lambda a, b: a + b.cpu(), state.moments, one) for one in added]

    refined, sums = on_device(shard, documents, compute, work)
    rows_of_sums = [moment_row(one) for one in sums]
    rows_of_sums[0] |= {
        "leaving": rows[(mask & ~refined).numpy()],
        "coming": rows[(refined & ~mask).numpy()],
    }
    return write_sums(run, "swaps", shard, schemas.SWAPS, rows_of_sums, {})


def _refined(
    run: Run, data: ShardData, mask: torch.Tensor, inclusion: torch.Tensor
) -> torch.Tensor:
    """The mask after swaps, on the CPU."""
    if not data.num_documents:
        return mask
    corpus = known_corpus(run, run.last_round, data.device)
    terms = [term for term in corpus.terms if term.weight != 0]
    expected = Total.read(run, run.last_round).expected
    share = float(corpus.moments.count) / expected  # the sums that are known are scaled to S
    given = (mask.to(data.device), share * inclusion.to(data.device))
    most = run.settings.selection.swap_refinement
    try:
        return refine_part(data, terms, *given, most, corpus.moments).cpu()
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return mask  # with few documents, the sums of the other shards may fit no selection


def sum_swaps(run: Run, compute: Compute) -> None:
    """Write `swaps.parquet`: moments of the masks of all shards, with swaps and without them.

    The metrics of the receipt: `objective` of the corpus `with` and `without` them, the number of
    `swaps`, and whether they are `applied`.
    """
    corpus, shards = known_corpus(run, run.last_round, torch.device("cpu")), range(run.num_shards)
    terms = [term for term in corpus.terms if term.weight != 0]
    rows, values = [], {}
    for row, name in enumerate(("with", "without")):
        moments = read_moments(run, "swaps", shards, row)
        rows.append(moment_row(moments))
        moments = scaled_moments(moments, float(corpus.moments.count))
        values[name] = float(joint_value(terms, moments))
    number = sum(len(swaps_of(run, shard)["leaving"]) for shard in shards)
    metrics = {"objective": values, "swaps": number, "applied": values["with"] > values["without"]}
    logger.info("swaps: %d; objective %.4f with and %.4f without them", number, *values.values())
    write_sums(run, "swaps_total", 0, schemas.MOMENTS, rows, metrics)
