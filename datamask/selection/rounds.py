"""A shard in the rounds of scope `corpus`, and its logits after the last one.

Round 1 reads the vectors of all documents, later ones those of the documents that may still move
(`datamask.learning.expected.unsettled`): the moments of the others stay as they are. What happens
between rounds is in `datamask.selection.totals`.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
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
from datamask.runs import schemas
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run, shard_seed
from datamask.runs.stage_settings import swaps_together
from datamask.selection.documents import on_device, read_documents
from datamask.selection.sampling import SAMPLED, corpus_sample, sample_places, sampled_rows
from datamask.selection.sums import (
    RoundRow,
    SampleRow,
    Total,
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


@dataclass(frozen=True, slots=True)
class ShardState:
    """A shard before or after a round.

    Args:
        logits: float32, shape N.
        moments: at these logits; before the first round, of all documents.
        step_size: length of the shard's next moves.
    """

    logits: torch.Tensor
    moments: Moments
    step_size: StepSize


def state_after(run: Run, shard: int, number: int) -> ShardState:
    """A shard after a round, from what it wrote in this round and the share that was applied.

    Raises:
        RunError: the round is missing or stale.
    """
    unit = run.round_units(number)[shard]
    share = Total.read(run, number).share or 0.0
    before, proposed = (
        read_moments(run, "round", [unit], row) for row in (RoundRow.PRESENT, RoundRow.PROPOSED)
    )
    if number == 1:  # of all documents, of which each is selected in part
        before = map_moments(lambda one: share_selected(run, 0) * one, before)
    row = read_lists(run, "round", ("present", "proposed", "step_size"), unit)
    present, after = (torch.tensor(row[name]) for name in ("present", "proposed"))
    return ShardState(
        exchange.taken(present, after, share),
        mixed_moments(before, proposed, share),
        StepSize(*row["step_size"].tolist()),
    )


def learn_round(run: Run, unit: int, compute: Compute) -> Receipt:
    """Write a shard's file of a round: its proposed and present logits, and the moments at these.

    The unit identifies shard and round (`Run.round_units`).

    Raises:
        RunError: an input is missing or stale.
        CorruptFileError: the inputs do not hold the same documents.
    """
    shard, number = run.shard_of("round", unit), unit // run.num_shards + 1
    gains: np.ndarray = np.zeros(0, np.float32)
    if number == 1:
        before, after, gains = _judged(run, shard, compute)
    else:
        before = state_after(run, shard, number - 1)
        after = _moved(run, shard, number, before, compute)
    inclusion = inclusion_of(after.logits).to(torch.float64).numpy()
    tokens = float((tokens_of(run, shard) * inclusion).sum())
    rows = [moment_row(after.moments, tokens), moment_row(before.moments)]
    rows[0] |= {
        "present": before.logits.numpy(),
        "proposed": after.logits.numpy(),
        "sampled": after.logits.numpy()[sampled_rows(run, shard)],
        "step_size": astuple(after.step_size),
        "gains": gains,
    }
    return write_sums(run, "round", unit, schemas.ROUND, rows, {})


def _judged(run: Run, shard: int, compute: Compute) -> tuple[ShardState, ShardState, np.ndarray]:
    """A shard before and after the first round; if it is the only one, the documents' gains."""
    documents = read_documents(run, shard, compute, "round")

    def work(data: ShardData) -> tuple[ShardState, ShardState, np.ndarray]:
        corpus, gains = known_corpus(run, 0, data.device), np.zeros(0)
        proposed, moments = corpus.judge.judge(data, moment_order(run))
        if run.settings.selection.num_rounds == 1:
            selected = read_moments(run, "round_total", [0], SampleRow.EXPECTED)
            gains = _gains(data, corpus, proposed > 0, selected)
        before = first_logits(run, data.num_documents), all_moments(run, data)
        after = ShardState(proposed.cpu(), moments, StepSize())
        return ShardState(*before, StepSize()), after, gains.astype(np.float32)

    return on_device(shard, documents, compute, work)


def _gains(
    data: ShardData, corpus: exchange.Corpus, mask: torch.Tensor, moments: Moments
) -> np.ndarray:
    """Gains of a shard's documents at moments of the corpus, on the CPU; float64, shape N."""
    terms = [term for term in corpus.terms if term.weight != 0]
    moments = map_moments(lambda one: one.to(data.device), moments)
    return published.gains(data, terms, mask.to(data.device), moments)


def _moved(run: Run, shard: int, number: int, before: ShardState, compute: Compute) -> ShardState:
    """What a shard proposes in a later round."""
    rows, seed = movable(run, number, before.logits), shard_seed(run.settings.seed, shard)
    if not len(rows):
        return before
    documents = read_documents(run, shard, compute, "round", rows)
    generator = torch.Generator().manual_seed(shard_seed(seed, number))

    def work(data: ShardData) -> exchange.Proposal:
        corpus = known_corpus(run, number - 1, data.device)
        others, logits = _others(run, shard, number - 1, compute), before.logits[rows]
        given = (logits.to(data.device), len(before.logits), before.step_size, others, generator)
        return exchange.propose(data, corpus, *given)

    proposal, logits = on_device(shard, documents, compute, work), before.logits.clone()
    logits[rows] = proposal.logits_B.cpu()
    change = map_moments(lambda one: one.cpu(), proposal.change)
    moments = map_moments(torch.add, before.moments, change)
    return ShardState(logits, moments, proposal.step_size)


def logits_of_rounds(run: Run, shard: int, compute: Compute) -> tuple[np.ndarray, dict[str, Any]]:
    """A shard's logits after the last round, and the learner's metrics.

    Logits are as in `datamask.learning.published`, at the moments of the corpus and minus its dual
    price; after one round, at the moments that the sample expects. A
    shard has as many documents above 0 as it expects to keep (`expected_mask`).

    Raises:
        RunError: the last round is missing or stale.
    """
    rounds = run.last_round
    total = Total.read(run, rounds)
    present = last_logits(run, state_after(run, shard, rounds).logits)
    mask = expected_mask(present, total.drawn).numpy()
    if swaps_together(run.settings) and run.receipt("swaps_total").metrics["applied"]:
        moved = swaps_of(run, shard)
        mask[moved["leaving"]], mask[moved["coming"]] = False, True
    corpus, price = known_corpus(run, rounds, torch.device("cpu")), total.dual_price
    if rounds == 1:
        gains = read_lists(run, "round", ("gains",), shard)["gains"].astype(np.float64)
    else:
        documents = read_documents(run, shard, compute, "learning")
        given = corpus, torch.from_numpy(mask), corpus.moments
        gains = on_device(shard, documents, compute, lambda data: _gains(data, *given))
    values = (gains - price) * published.unit(
        float(corpus.moments.count), float(corpus.totals.count), run.settings.selection.scale_terms
    )
    # If the gain does not depend on other documents, its sign decides.
    is_independent = is_linear([term for term in corpus.terms if term.weight != 0])
    logits = published.on_side(values, values > 0 if is_independent else mask)
    how = {
        "estimator": "expected",
        "steps": rounds,
        "stopped_by": "tolerance" if total.settled else "rounds",
        "drawn": total.drawn,
    }
    return logits, how


def last_logits(run: Run, present: torch.Tensor) -> torch.Tensor:
    """A shard's logits after the last round, shifted so that all shards expect to select S."""
    if run.last_round == 1:  # gains choose from more than S
        return present
    total = Total.read(run, run.last_round)
    part = long_sum(inclusion_of(present.to(torch.float64))) / total.expected
    return exchange.expecting(present, part * total.documents)


def swaps_of(run: Run, shard: int) -> dict[str, np.ndarray]:
    """The places of the documents that a shard swaps: those that are `leaving` and `coming`."""
    run.receipt("swaps", shard)
    return read_lists(run, "swaps", ("leaving", "coming"), shard)


def known_corpus(run: Run, number: int, device: torch.device) -> exchange.Corpus:
    """What shards know before the round after this one."""
    total = Total.read(run, number)
    totals, moments, slope = (
        map_moments(lambda one: one.to(device), read_moments(run, "round_total", [unit], row))
        for unit, row in ((0, 0), (number, 0), (0, 1))
    )
    judge = exchange.Judge(slope, Total.read(run, 0).threshold or 0.0)
    moments = scaled_moments(moments, total.documents)
    return exchange.Corpus(scaled_terms(run), totals, moments, judge, total.excess)


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
