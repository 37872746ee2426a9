"""A shard in the rounds of scope `corpus`, and its swaps and logits after the last one.

Round 1 reads the vectors of all documents, later ones those of the documents that may still move
(`datamask.learning.expected.unsettled`): the moments of the others stay as they are. What happens
between rounds is in `datamask.selection.totals`.

After the last round every shard keeps its most probable documents. Their sums differ from those
expected, and with few documents that costs some of the gain. So each shard swaps documents as if
the others' sums were as expected. All shards do so at once, and may together change too much: the
swaps are applied only if the objective of the corpus rises by all of them (stage `swaps_total`).
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import torch

from datamask.config.compute import Compute
from datamask.learning import exchange, published
from datamask.learning.data import ShardData, moments_of
from datamask.learning.expected import StepSize, unsettled
from datamask.learning.moment_gradient import marginal_gains
from datamask.learning.policy import expected_mask, inclusion_of, long_sum
from datamask.learning.swap_refinement import refine_part
from datamask.objectives.protocol import Moments
from datamask.objectives.weighted import is_linear
from datamask.runs import schemas
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run, shard_seed
from datamask.runs.stage_settings import swaps_together
from datamask.selection import sampling, sums
from datamask.selection.documents import on_device, read_documents
from datamask.selection.sums import RoundRow


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
    """A shard after a round, from what it wrote in this round and the share that was applied."""
    unit = run.round_units(number)[shard]
    share = sums.Total.read(run, number).share or 0.0
    before, proposed = (
        sums.read_moments(run, "round", [unit], row)
        for row in (RoundRow.PRESENT, RoundRow.PROPOSED)
    )
    if number == 1:  # of all documents, of which each is selected in part
        before = before.mapped(lambda total: sums.share_selected(run, 0) * total)
    row = sums.read_lists(run, "round", ("present", "proposed", "step_size"), unit)
    present, after = (torch.tensor(row[name]) for name in ("present", "proposed"))
    return ShardState(
        exchange.taken(present, after, share),
        before.mixed(proposed, share),
        StepSize(*row["step_size"].tolist()),
    )


def learn_round(run: Run, unit: int, compute: Compute) -> Receipt:
    """Write a shard's file of a round: its proposed and present logits, and the moments at these.

    The unit identifies shard and round (`Run.round_units`).
    """
    shard, number = run.shard_of("round", unit), unit // run.num_shards + 1
    gains: np.ndarray = np.zeros(0, np.float32)
    if number == 1:
        before, after, gains = _judged(run, shard, compute)
    else:
        before = state_after(run, shard, number - 1)
        after = _moved(run, shard, number, before, compute)
    inclusion = inclusion_of(after.logits).to(torch.float64).numpy()
    tokens = float((sums.tokens_of(run, shard) * inclusion).sum())
    rows = [sums.moment_row(after.moments, tokens), sums.moment_row(before.moments)]
    rows[0] |= {
        "present": before.logits.numpy(),
        "proposed": after.logits.numpy(),
        "sampled": after.logits.numpy()[sampling.sampled_rows(run, shard)],
        "step_size": astuple(after.step_size),
        "gains": gains,
    }
    return sums.write_sums(run, "round", unit, schemas.ROUND, rows, {})


def _judged(run: Run, shard: int, compute: Compute) -> tuple[ShardState, ShardState, np.ndarray]:
    """A shard before and after the first round; if it is the only one, the documents' gains."""
    documents = read_documents(run, shard, compute, "round")

    def work(data: ShardData) -> tuple[ShardState, ShardState, np.ndarray]:
        corpus, gains = known_corpus(run, 0, data.device), np.zeros(0)
        proposed, moments = corpus.judge.judge(data, sums.moment_order(run))
        if run.settings.selection.num_rounds == 1:
            selected = sums.read_moments(run, "round_total", [0], sums.SampleRow.EXPECTED)
            gains = _gains(data, corpus, proposed > 0, selected)
        before = sums.first_logits(run, data.num_documents), sums.all_moments(run, data)
        after = ShardState(proposed.cpu(), moments, StepSize())
        return ShardState(*before, StepSize()), after, gains.astype(np.float32)

    return on_device(shard, documents, compute, work)


def _gains(
    data: ShardData, corpus: exchange.Corpus, mask: torch.Tensor, moments: Moments
) -> np.ndarray:
    """Gains of a shard's documents at moments of the corpus, on the CPU; float64, shape N."""
    terms = [term for term in corpus.terms if term.weight != 0]
    return marginal_gains(data, terms, mask.to(data.device), moments.to(data.device))


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
    change = proposal.change.to("cpu")
    moments = before.moments.mapped(torch.add, change)
    return ShardState(logits, moments, proposal.step_size)


def logits_of_rounds(run: Run, shard: int, compute: Compute) -> tuple[np.ndarray, dict[str, Any]]:
    """A shard's logits after the last round, and the learner's metrics.

    Logits are as in `datamask.learning.published`, at the moments of the corpus and minus its dual
    price; after one round, at the moments that the sample expects. A shard has as many documents
    above 0 as it expects to keep (`expected_mask`).
    """
    rounds = run.last_round
    total = sums.Total.read(run, rounds)
    present = last_logits(run, state_after(run, shard, rounds).logits)
    mask = expected_mask(present, total.drawn).numpy()
    if swaps_together(run.settings) and run.receipt("swaps_total").metrics["applied"]:
        moved = swaps_of(run, shard)
        mask[moved["leaving"]], mask[moved["coming"]] = False, True
    corpus, price = known_corpus(run, rounds, torch.device("cpu")), total.dual_price
    if rounds == 1:
        gains = sums.read_lists(run, "round", ("gains",), shard)["gains"].astype(np.float64)
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
    total = sums.Total.read(run, run.last_round)
    part = long_sum(inclusion_of(present.to(torch.float64))) / total.expected
    return exchange.expecting(present, part * total.documents)


def swaps_of(run: Run, shard: int) -> dict[str, np.ndarray]:
    """The places of the documents that a shard swaps: those that are `leaving` and `coming`."""
    run.receipt("swaps", shard)
    return sums.read_lists(run, "swaps", ("leaving", "coming"), shard)


def known_corpus(run: Run, number: int, device: torch.device) -> exchange.Corpus:
    """What shards know before the round after this one."""
    total = sums.Total.read(run, number)
    totals, moments, slope = (
        sums.read_moments(run, "round_total", [unit], row).to(device)
        for unit, row in ((0, 0), (number, 0), (0, 1))
    )
    judge = exchange.Judge(slope, sums.Total.read(run, 0).threshold or 0.0)
    moments = moments.scaled(total.documents)
    return exchange.Corpus(sums.scaled_terms(run), totals, moments, judge, total.excess)


def _others(run: Run, shard: int, number: int, compute: Compute) -> tuple[ShardData, torch.Tensor]:
    """The sample's documents of other shards, and their logits after a round."""
    sample = sampling.known_sample(run, compute)
    others = np.delete(np.arange(sample.num_documents), sampling.sample_places(run, shard))
    rows = torch.from_numpy(others)
    return sample.part(rows), sample_logits(run, number)[rows]


def sample_logits(run: Run, number: int) -> torch.Tensor:
    """The logits of the sample's documents after a round; before the first, all the same."""
    if number:
        lists = sums.read_lists(run, "round_total", ("sample_logits",), number)
        return torch.from_numpy(lists["sample_logits"].copy())
    last = sampling.sample_places(run, run.num_shards - 1).stop
    return sums.first_logits(run, last)


def movable(run: Run, number: int, logits: torch.Tensor) -> np.ndarray:
    """Places of the documents that may move in a round after the first."""
    if is_linear([term for term in sums.scaled_terms(run) if term.weight != 0]):
        return np.zeros(0, np.int64)  # the judge has decided
    return unsettled(inclusion_of(logits), sums.share_selected(run, number - 1)).numpy()


def swap_shard(run: Run, shard: int, compute: Compute) -> Receipt:
    """Write `swaps/NNNNN.parquet`: what a shard would swap, and its sums with and without it."""
    rounds = run.last_round
    state = state_after(run, shard, rounds)
    logits = last_logits(run, state.logits)
    rows = movable(run, rounds + 1, logits)
    mask = expected_mask(logits, sums.Total.read(run, rounds).drawn)[rows]
    documents = read_documents(run, shard, compute, "swaps", rows)

    def work(data: ShardData) -> tuple[torch.Tensor, list[Moments]]:
        inclusion = inclusion_of(state.logits[rows])
        refined = _refined(run, data, mask, inclusion)
        moments = []
        for rounded in (refined, mask):
            change = (rounded.float() - inclusion).to(data.device)
            added = moments_of(data, change, sums.moment_order(run)).to("cpu")
            moments.append(state.moments.mapped(torch.add, added))
        return refined, moments

    refined, moments = on_device(shard, documents, compute, work)
    moment_rows = list(map(sums.moment_row, moments))
    moment_rows[0] |= {
        "leaving": rows[(mask & ~refined).numpy()],
        "coming": rows[(refined & ~mask).numpy()],
    }
    return sums.write_sums(run, "swaps", shard, schemas.SWAPS, moment_rows, {})


def _refined(
    run: Run, data: ShardData, mask: torch.Tensor, inclusion: torch.Tensor
) -> torch.Tensor:
    """The mask after swaps, on the CPU."""
    if not data.num_documents:
        return mask
    corpus = known_corpus(run, run.last_round, data.device)
    terms = [term for term in corpus.terms if term.weight != 0]
    expected = sums.Total.read(run, run.last_round).expected
    share = float(corpus.moments.count) / expected  # the sums that are known are scaled to S
    given = (mask.to(data.device), share * inclusion.to(data.device))
    most = run.settings.selection.swap_refinement
    try:
        return refine_part(data, terms, *given, most, corpus.moments).cpu()
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return mask  # with few documents, the sums of the other shards may fit no selection
