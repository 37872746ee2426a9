"""Move a shard through the rounds of scope `corpus`, and compute its logits after the last one.

Round 1 reads the vectors of all documents. Later rounds read only documents that may still move
(`datamask.learning.expected.unsettled`): the moments of the others stay as they are.
`datamask.selection.totals` does the work between rounds.

After the last round every shard keeps its most probable documents.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import torch

from datamask.config.compute import Compute
from datamask.learning import exchange, published
from datamask.learning.data import ShardData, highest_order
from datamask.learning.expected import StepSize, unsettled
from datamask.learning.moment_gradient import marginal_gains
from datamask.learning.policy import expected_mask, inclusion_of, long_sum
from datamask.objectives.protocol import Moments
from datamask.objectives.weighted import is_linear
from datamask.runs import schemas
from datamask.runs.run import Run, shard_seed
from datamask.selection import sampling, sums
from datamask.selection.documents import ShardDocuments, on_device, read_quality, with_vectors
from datamask.selection.sums import CorpusState


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


def state_after(run: Run, shard: int, state: CorpusState) -> ShardState:
    """Return a shard after a round, from its file of the round and the applied fraction."""
    unit, share = run.round_units(state.number)[shard], state.total.share or 0.0
    run.receipt("round", unit)
    names = (*schemas.MOMENTS.names, "present", "proposed", "step_size")
    rows = sums.read_rows(run, "round", names, unit)
    proposed, before = (sums.moments_of_row(run, row) for row in rows)
    if state.number == 1:  # These moments count all documents, each in part.
        fraction = state.share_selected(state.first)
        before = before.mapped(lambda total: fraction * total)
    present, after = (torch.tensor(rows[0][name]) for name in ("present", "proposed"))
    return ShardState(
        exchange.taken(present, after, share),
        before.mixed(proposed, share),
        StepSize(*rows[0]["step_size"].tolist()),
    )


def learn_round(run: Run, unit: int, compute: Compute) -> None:
    """Write a shard's file of a round: its proposed and present logits, and the moments at these.

    The unit identifies shard and round (`Run.round_units`).
    """
    shard, number = run.shard_of("round", unit), unit // run.num_shards + 1
    state, documents = CorpusState.read(run, number - 1), read_quality(run, shard)
    if number == 1:
        before, after, gains = _judged(run, state, documents, compute)
    else:
        before, gains = state_after(run, shard, state), np.zeros(0)
        after = _moved(run, state, documents, before, compute)
    inclusion = inclusion_of(after.logits).to(torch.float64).numpy()
    tokens = sums.weighed_tokens(run, documents, inclusion)
    rows = [sums.moment_row(after.moments, tokens), sums.moment_row(before.moments)]
    rows[0] |= {
        "present": before.logits.numpy(),
        "proposed": after.logits.numpy(),
        "sampled": after.logits.numpy()[sampling.sampled_rows(run, documents)],
        "step_size": astuple(after.step_size),
        "gains": gains,
    }
    sums.write_sums(run, "round", unit, schemas.ROUND, rows, {})


def _judged(
    run: Run, state: CorpusState, documents: ShardDocuments, compute: Compute
) -> tuple[ShardState, ShardState, np.ndarray]:
    """Return a shard before and after the first round; if it is the only one, also the gains."""
    documents = with_vectors(run, documents)

    def work(data: ShardData) -> tuple[ShardState, ShardState, np.ndarray]:
        corpus, gains = state.corpus.to(data.device), np.zeros(0)
        proposed, moments = corpus.judge.judge(data, highest_order(corpus.terms))
        if run.settings.selection.num_rounds == 1:
            *_, selected = sums.read_moments(run, "round_total", [0])
            gains = _gains(data, corpus, proposed > 0, selected)
        before = state.first_logits(data.num_documents), sums.all_moments(run, data)
        after = ShardState(proposed.cpu(), moments, StepSize())
        return ShardState(*before, StepSize()), after, gains.astype(np.float32)

    return on_device(documents, compute, work)


def _gains(
    data: ShardData, corpus: exchange.Corpus, mask: torch.Tensor, moments: Moments
) -> np.ndarray:
    """Return gains of a shard's documents at the corpus's moments, on the CPU; float64, N."""
    return marginal_gains(data, corpus.active, mask.to(data.device), moments.to(data.device))


def _moved(
    run: Run, state: CorpusState, documents: ShardDocuments, before: ShardState, compute: Compute
) -> ShardState:
    """Return the state that a shard proposes in a later round."""
    rows, seed = movable(state, before.logits), shard_seed(run.settings.seed, documents.shard)
    if not len(rows):
        return before
    documents = with_vectors(run, documents, rows)
    generator = torch.Generator().manual_seed(shard_seed(seed, state.number + 1))
    sample = sampling.known_sample(run, compute)
    own = sampling.sample_places(documents.left)
    others = torch.from_numpy(np.delete(np.arange(sample.num_documents), own))
    stand_ins = sample.part(others), sample_logits(run, state, sample.num_documents)[others]

    def work(data: ShardData) -> exchange.Proposal:
        logits = before.logits[rows].to(data.device)
        given = (logits, len(before.logits), before.step_size, stand_ins, generator)
        return exchange.propose(data, state.corpus.to(data.device), *given)

    proposal, logits = on_device(documents, compute, work), before.logits.clone()
    logits[rows] = proposal.logits_B.cpu()
    change = proposal.change.to("cpu")
    moments = before.moments.mapped(torch.add, change)
    return ShardState(logits, moments, proposal.step_size)


def logits_of_rounds(run: Run, shard: int, compute: Compute) -> tuple[np.ndarray, dict[str, Any]]:
    """Return a shard's logits after the last round, and the learner's metrics.

    Logits are as in `datamask.learning.published`, at the moments of the corpus and minus its dual
    price; after one round, at the moments that the sample expects. A shard has as many documents
    above 0 as it expects to keep (`expected_mask`).
    """
    state = CorpusState.read(run, run.last_round)
    corpus, total = state.corpus, state.total
    present = _last_logits(state, state_after(run, shard, state).logits)
    mask = expected_mask(present, total.drawn).numpy()
    if state.number == 1:
        gains = sums.read_lists(run, "round", ("gains",), shard)["gains"].astype(np.float64)
    else:
        documents = with_vectors(run, read_quality(run, shard))
        given = corpus, torch.from_numpy(mask), corpus.moments
        gains = on_device(documents, compute, lambda data: _gains(data, *given))
    values = (gains - total.dual_price) * float(corpus.moments.count)
    # If the gain does not depend on other documents, its sign decides.
    logits = published.on_side(values, values > 0 if is_linear(corpus.active) else mask)
    how = {
        "estimator": "expected",
        "steps": state.number,
        "stopped_by": "tolerance" if total.settled else "rounds",
        "drawn": total.drawn,
    }
    return logits, how


def _last_logits(state: CorpusState, present: torch.Tensor) -> torch.Tensor:
    """Shift a shard's logits after the last round so that all shards expect to select S."""
    if state.number == 1:  # Gains choose from more than S documents.
        return present
    fraction = long_sum(inclusion_of(present.to(torch.float64))) / state.total.expected
    return exchange.expecting(present, fraction * state.total.documents)


def sample_logits(run: Run, state: CorpusState, documents: int) -> torch.Tensor:
    """Return the logits of the sample's documents after a round; before the first, all equal."""
    if not state.number:
        return state.first_logits(documents)
    lists = sums.read_lists(run, "round_total", ("sample_logits",), state.number)
    return torch.from_numpy(lists["sample_logits"].copy())


def movable(state: CorpusState, logits: torch.Tensor) -> np.ndarray:
    """Return the documents that may move in the next round, which is not the first."""
    if is_linear(state.corpus.active):
        return np.zeros(0, np.int64)  # The judge has decided.
    return unsettled(inclusion_of(logits), state.share_selected(state.total)).numpy()
