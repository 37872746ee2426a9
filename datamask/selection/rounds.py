"""A shard in the rounds of scope `corpus`, and its logits after the last one.

Round 1 reads the vectors of all documents, later ones those of the documents that may still move
(`datamask.learning.expected.unsettled`): the moments of the others stay as they are. What happens
between rounds is in `datamask.selection.across_shards`.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import numpy as np
import torch

from datamask.config.compute import Compute
from datamask.learning import exchange, published
from datamask.learning.data import ShardData, map_moments, mixed_moments, scaled_moments
from datamask.learning.expected import StepSize, unsettled
from datamask.learning.policy import expected_mask, inclusion_of, long_sum
from datamask.objectives.protocol import Moments
from datamask.objectives.weighted import is_linear
from datamask.runs import budget, schemas
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run, shard_seed
from datamask.runs.stage_settings import swaps_together
from datamask.selection import one_pass
from datamask.selection.documents import ShardDocuments, on_device, read_documents
from datamask.selection.sampling import SAMPLED, corpus_sample, sample_places, sampled_rows
from datamask.selection.sums import (
    Row,
    all_moments,
    first_logits,
    moment_order,
    moment_row,
    read_lists,
    read_moments,
    scaled_terms,
    share_selected,
    tokens_of,
    write_sums,
)


def learn_round(run: Run, unit: int, compute: Compute) -> Receipt:
    """Write a shard's file of a round: its proposed logits, and the moments at these.

    The unit identifies shard and round (`Run.round_units`).

    Raises:
        RunError: an input is missing or stale.
        CorruptFileError: the inputs do not hold the same documents.
    """
    shard, number = run.shard_of("round", unit), unit // run.num_shards + 1
    before, step_size = present_logits(run, shard, number)
    if number > 1:
        proposed, moments, step_size = _moved(run, shard, number, before, step_size, compute)
        sums = [moments]
    elif run.settings.selection.one_pass:
        proposed, rows = one_pass.judge_shard(run, shard, compute)
    else:
        proposed, sums = _judged(run, shard, compute)
    schema = schemas.ONE_PASS_ROUND
    if not run.settings.selection.one_pass:
        schema = schemas.ROUND
        inclusion = inclusion_of(proposed).to(torch.float64).numpy()
        tokens = (tokens_of(run, shard) * inclusion).sum()
        rows = [moment_row(one, float(tokens)) for one in sums]
    rows[0] |= {
        "proposed": proposed.numpy(),
        "sampled": proposed.numpy()[sampled_rows(run, shard)],
        "step_size": astuple(step_size),
    }
    return write_sums(run, "round", unit, schema, rows, {})


def _judged(run: Run, shard: int, compute: Compute) -> tuple[torch.Tensor, list[Moments]]:
    """Logits that the first round proposes; the moments at these and of all documents."""
    documents = read_documents(run, shard, compute, "round")

    def work(data: ShardData) -> tuple[torch.Tensor, list[Moments]]:
        judge = known_corpus(run, 0, data.device).judge
        proposed, moments = judge.judge(data, moment_order(run))
        return proposed.cpu(), [moments, all_moments(run, data)]

    return on_device(shard, documents, compute, work)


def _moved(
    run: Run, shard: int, number: int, logits: torch.Tensor, step_size: StepSize, compute: Compute
) -> tuple[torch.Tensor, Moments, StepSize]:
    """Logits that a later round proposes, the moments at these, and the next step size."""
    rows, moments = movable(run, number, logits), present_moments(run, shard, number)
    if not len(rows):
        return logits, moments, step_size
    documents = read_documents(run, shard, compute, "round", rows)
    seed = shard_seed(shard_seed(run.settings.seed, shard), number)

    def work(data: ShardData) -> exchange.Proposal:
        corpus = known_corpus(run, number - 1, data.device)
        others = _others(run, shard, number - 1, compute)
        generator, present = torch.Generator().manual_seed(seed), logits[rows].to(data.device)
        return exchange.propose(data, corpus, present, len(logits), step_size, others, generator)

    found, proposed = on_device(shard, documents, compute, work), logits.clone()
    proposed[rows] = found.logits_B.cpu()
    change = map_moments(lambda one: one.cpu(), found.change)
    return proposed, map_moments(torch.add, moments, change), found.step_size


def logits_of_rounds(
    run: Run, shard: int, documents: ShardDocuments, compute: Compute
) -> tuple[np.ndarray, dict[str, list[float]], dict[str, Any]]:
    """A shard's logits after the last round, the curve of the corpus, and the learner's metrics.

    Logits are as in `datamask.learning.published`, at the moments of the corpus and minus its dual
    price. A shard has as many documents above 0 as it expects to keep (`expected_mask`). The curve
    has a point per round; its `seconds` are 0, because the duration of a round belongs to no shard.

    Raises:
        RunError: the last round is missing or stale.
    """
    rounds = run.last_round
    present = last_logits(run, present_logits(run, shard, rounds + 1)[0])
    corpus = known_corpus(run, rounds, torch.device("cpu"))
    terms = [term for term in corpus.terms if term.weight != 0]
    totals = [run.receipt("round_total", number).metrics for number in range(rounds + 1)]
    mask = expected_mask(present, totals[-1]["drawn"]).numpy()
    if swaps_together(run.settings) and run.receipt("swaps_total").metrics["applied"]:
        moved = swaps_of(run, shard)
        mask[moved["leaving"]], mask[moved["coming"]] = False, True

    def gains(data: ShardData) -> np.ndarray:
        moments = map_moments(lambda one: one.to(data.device), corpus.moments)
        return published.gains(data, terms, torch.from_numpy(mask).to(data.device), moments)

    if run.settings.selection.one_pass:
        found = read_lists(run, "round", ("gains",), shard)["gains"]
        values = found.astype(np.float64) - totals[0]["predicted"]["dual_price"]
    else:
        values = on_device(shard, documents, compute, gains) - totals[-1]["dual_price"]
    values *= published.unit(
        float(corpus.moments.count), float(corpus.totals.count), run.settings.selection.scale_terms
    )
    # If the gain does not depend on other documents, its sign decides.
    logits = published.on_side(values, values > 0 if is_linear(terms) else mask)
    curve: dict[str, list[float]] = {
        "step": list(range(rounds + 1)),
        "seconds": [0.0] * (rounds + 1),
        "objective": [metrics["objective"] for metrics in totals],
    }
    curve |= {name: [metrics["terms"][name] for metrics in totals] for name in totals[0]["terms"]}
    how = {
        "estimator": "expected",
        "steps": rounds,
        "stopped_by": "tolerance" if totals[-1]["settled"] else "rounds",
        "drawn": totals[-1]["drawn"],
    }
    return logits, curve, how


def last_logits(run: Run, present: torch.Tensor) -> torch.Tensor:
    """A shard's logits after the last round, shifted so that all shards expect to select S."""
    if run.settings.selection.one_pass:  # there, the mask is the one that was predicted
        return present
    metrics = run.receipt("round_total", run.last_round).metrics
    part = long_sum(inclusion_of(present.to(torch.float64))) / metrics["expected"]
    return exchange.expecting(present, part * metrics["documents"])


def swaps_of(run: Run, shard: int) -> dict[str, np.ndarray]:
    """The places of the documents that a shard swaps: those that are `leaving` and `coming`."""
    run.receipt("swaps", shard)
    return read_lists(run, "swaps", ("leaving", "coming"), shard)


def known_corpus(run: Run, number: int, device: torch.device) -> exchange.Corpus:
    """What shards know before the round after this one."""
    metrics = run.receipt("round_total", number).metrics
    totals, moments, slope = (
        map_moments(lambda total: total.to(device), read_moments(run, "round_total", [unit], row))
        for unit, row in ((0, 0), (number, 0), (0, 1))
    )
    judge = exchange.Judge(slope, run.receipt("round_total", 0).metrics["threshold"])
    moments = scaled_moments(moments, metrics["documents"])
    return exchange.Corpus(scaled_terms(run), totals, moments, judge, metrics["excess"])


def _others(run: Run, shard: int, number: int, compute: Compute) -> tuple[ShardData, torch.Tensor]:
    """The sample's documents of other shards, and their logits after a round."""
    sample = corpus_sample(run, read_lists(run, "round_total", SAMPLED), compute)
    others = np.delete(np.arange(sample.num_documents), sample_places(run, shard))
    rows = torch.from_numpy(others)
    return sample.part(rows), sample_logits(run, number)[rows]


def sample_logits(run: Run, number: int) -> torch.Tensor:
    """The logits of the sample's documents after a round; before the first, all the same."""
    if number:
        lists = read_lists(run, "round_total", ("sample_logits",), number)
        return torch.from_numpy(lists["sample_logits"].copy())
    last = sample_places(run, run.num_shards - 1).stop
    return first_logits(run, last)


def movable(run: Run, number: int, logits: torch.Tensor) -> np.ndarray:
    """Places of the documents that may move in a round after the first."""
    if is_linear([term for term in scaled_terms(run) if term.weight != 0]):
        return np.zeros(0, np.int64)  # the judge has decided
    return unsettled(inclusion_of(logits), share_selected(run, number - 1)).numpy()


def present_moments(run: Run, shard: int, number: int) -> Moments:
    """Moments of a shard at its logits before a round after the first."""
    moments = read_moments(run, "round", [shard], Row.ALL)
    moments = map_moments(lambda one: share_selected(run, 0) * one, moments)
    for earlier in range(1, number):
        proposed = read_moments(run, "round", [run.round_units(earlier)[shard]])
        share = run.receipt("round_total", earlier).metrics["share"]
        moments = mixed_moments(moments, proposed, share)
    return moments


def present_logits(run: Run, shard: int, number: int) -> tuple[torch.Tensor, StepSize]:
    """A shard's logits before a round, computed from its proposals, and its next step size."""
    left = budget.Survivors.of(run.receipt("quality", shard).metrics)
    logits, step_size = first_logits(run, left.kept), StepSize()
    for earlier in range(1, number):
        unit = run.round_units(earlier)[shard]
        run.receipt("round", unit)
        row = read_lists(run, "round", ("proposed", "step_size"), unit)
        share = run.receipt("round_total", earlier).metrics["share"]
        logits = exchange.taken(logits, torch.tensor(row["proposed"]), share)
        step_size = StepSize(*row["step_size"].tolist())
    return logits, step_size
