"""Stages `corpus_statistics`, `round` and `round_total`: shards exchange sums (scope `corpus`).

`corpus_statistics/` has the moments of every shard's documents, and a few of these as its part of a
sample of the corpus; `totals/00.parquet` has all of them together. `round/NN/` has the moments of
what every shard would select, and the logits that say so; `totals/NN.parquet` adds those up and
says how much of the round is taken. The mathematics is in `datamask.learning.exchange`; here it
meets files.

A file is one row. Moments are sums, and are added in the order of shards, in float64: the same
bytes however many workers there were. A shard's file is a few megabytes (the moments, and four
bytes twice for every document), and no shard ever reads another's: only the total.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch

from datamask.config.compute import Compute
from datamask.learning import exchange, published
from datamask.learning.data import ShardData, highest_order, moments_of, zero_moments
from datamask.learning.expected import StepSize
from datamask.learning.moment_gradient import joint_value
from datamask.learning.policy import top_mask
from datamask.learning.scales import random_subsets, scaled
from datamask.objectives.protocol import Moments
from datamask.objectives.weighted import WeightedTerm, build_terms
from datamask.runs import budget, schemas
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run, shard_seed
from datamask.selection.documents import ShardDocuments, read_documents, within_memory
from datamask.selection.sums import (
    SAMPLED,
    corpus_sample,
    drawn_sample,
    learner_data,
    moment_columns,
    moment_order,
    moments_on,
    read_lists,
    read_moments,
    scaled_terms,
    sum_moments,
    term_values,
    tokens_of,
    write_sums,
)

logger = logging.getLogger(__name__)

SAMPLE = 16_384
"""Documents of the corpus from which scales and prices are read off (docs/log.md#rounds)."""

ROUNDS_TO_STOP = 2
"""Rounds over which the objective's rise is looked at; in one of them little may be taken
(docs/log.md#rounds)."""


def shard_statistics(run: Run, shard: int, compute: Compute) -> Receipt:
    """Write a shard's moments of all its documents, and its part of a sample of the corpus.

    Raises:
        RunError: an input is not there yet.
        CorruptFileError: the inputs do not hold the same documents.
    """
    documents = read_documents(run, shard)

    def add_up(compute: Compute) -> Moments:
        data = learner_data(documents, compute)
        return moments_of(data, torch.ones_like(data.quality_N), moment_order(run), data.product)

    moments = within_memory(shard, compute, add_up)
    left = budget.Survivors.of(run.receipt("quality", shard).metrics)
    size = budget.shard_budget(
        min(SAMPLE, left.kept_total), left.kept_before, left.kept, left.kept_total
    )
    generator = np.random.Generator(np.random.PCG64(shard_seed(run.settings.seed, shard)))
    rows = np.sort(generator.permutation(left.kept)[:size])
    scores = [documents.scores[name][rows] for name in documents.scores]
    columns = {
        **moment_columns(moments, float(tokens_of(run, shard).sum())),
        "sample_features": [np.asarray(documents.features[rows], np.float16).ravel()],
        "sample_quality": [documents.quality[rows]],
        "sample_scores": [np.concatenate([*scores, np.zeros(0, np.float32)])],
    }
    return write_sums(run, "corpus_statistics", shard, schemas.CORPUS_STATISTICS, columns, {})


def _sum_statistics(run: Run, compute: Compute) -> None:
    """Write `totals/00.parquet`: moments of all documents, the terms' scales, a dual price."""
    totals, tokens = sum_moments(run, "corpus_statistics", range(run.num_shards))
    drawn = drawn_sample(run)
    sample = corpus_sample(run, drawn, compute)
    num_selected = _num_selected(run, totals, tokens)
    terms = build_terms(run.settings.selection)
    if run.settings.selection.scale_terms:
        seed = run.settings.seed
        terms = scaled(terms, random_subsets(terms, totals, sample, num_selected, seed))
    start = exchange.agree(terms, totals, totals, num_selected)[1]
    columns = moment_columns(totals, tokens) | drawn
    _write_total(run, 0, terms, start, sample, totals, None, columns)


def learn_round(run: Run, unit: int, compute: Compute) -> Receipt:
    """Write a shard's file of a round: where it would go, and the moments of that.

    Args:
        run: the run.
        unit: the shard and the round (`Run.round_units`).
        compute: how the work is done.

    Raises:
        RunError: an input is not there yet.
        CorruptFileError: the inputs do not hold the same documents.
    """
    shard, number = run.shard_of("round", unit), unit // run.num_shards + 1
    documents = read_documents(run, shard)
    logits, step_size = _standing(run, shard, number)
    seed = shard_seed(shard_seed(run.settings.seed, shard), number)

    def propose(compute: Compute) -> exchange.Proposal:
        data = learner_data(documents, compute)
        if not data.num_documents:
            return exchange.Proposal(logits, zero_moments(data, moment_order(run)), StepSize())
        corpus = _corpus(run, number - 1, data.device)
        generator = torch.Generator().manual_seed(seed)
        return exchange.propose(data, corpus, logits.to(data.device), step_size, generator)

    proposal = within_memory(shard, compute, propose)
    proposed = proposal.logits_N.cpu()
    tokens = tokens_of(run, shard) @ torch.sigmoid(proposed).to(torch.float64).numpy()
    columns = {
        **moment_columns(proposal.moments, float(tokens)),
        "before": [logits.numpy()],
        "proposed": [proposed.numpy()],
        "step_size": [
            [proposal.step_size.move, proposal.step_size.longest, proposal.step_size.scale]
        ],
    }
    return write_sums(run, "round", unit, schemas.ROUND, columns, {})


def sum_round(run: Run, number: int, compute: Compute) -> None:
    """Write `totals/NN.parquet`: moments of what is selected after a round, and a dual price.

    Total 0 is of all documents. The receipt's metrics: `share` of the round that was taken,
    `documents` (S), `dual_price`, `objective`, the `terms`' raw values and their `scales`, all of
    the corpus, as expected before any document is finally in or out; and whether the objective has
    `settled`: it rose over the last two rounds by at most `selection.tolerance` of its rise since
    before the first.

    Raises:
        RunError: a shard has not done the round.
    """
    if number == 0:
        _sum_statistics(run, compute)
        return
    proposed, tokens = sum_moments(run, "round", run.round_units(number))
    corpus = _corpus(run, number - 1, torch.device("cpu"))
    num_selected = _num_selected(run, proposed, tokens)
    share, moments = exchange.agree(corpus.terms, corpus.moments, proposed, num_selected)
    sample = corpus_sample(run, read_lists(run, "round_total", SAMPLED), compute)
    columns = moment_columns(moments, tokens)
    _write_total(run, number, corpus.terms, moments, sample, corpus.totals, share, columns)


def logits_of_rounds(
    run: Run, shard: int, documents: ShardDocuments, compute: Compute
) -> tuple[np.ndarray, dict[str, list[float]], dict[str, Any]]:
    """A shard's logits after the last round, the corpus's curve (a point per round), and figures.

    Logits are as `datamask.learning.published` says, at the corpus's moments and less its dual
    price. A shard has as many documents above it as it expects to keep, those of the highest
    inclusion. The curve's `seconds` are 0: a round's duration is no property of a shard.

    Raises:
        RunError: the last round is not there yet.
    """
    rounds = run.last_round
    standing, _ = _standing(run, shard, rounds + 1)

    def publish(compute: Compute) -> np.ndarray:
        data = learner_data(documents, compute)
        corpus = _corpus(run, rounds, data.device)
        terms = [term for term in corpus.terms if term.weight != 0]
        inclusion = torch.sigmoid(standing.to(torch.float64))
        mask = top_mask(inclusion, round(float(inclusion.sum()))).to(data.device)
        values = published.gains(data, terms, mask, corpus.moments) - corpus.dual_price
        values *= published.unit(
            float(corpus.moments.count),
            float(corpus.totals.count),
            run.settings.selection.scale_terms,
        )
        # Where the gain does not depend on the others, it says all.
        linear = highest_order(terms) < 1
        return published.on_side(values, values > 0 if linear else mask.cpu().numpy())

    totals = [run.receipt("round_total", number).metrics for number in range(rounds + 1)]
    curve: dict[str, list[float]] = {
        "step": list(range(rounds + 1)),
        "seconds": [0.0] * (rounds + 1),
        "objective": [metrics["objective"] for metrics in totals],
    }
    curve |= {name: [metrics["terms"][name] for metrics in totals] for name in totals[0]["terms"]}
    stopped_by = "tolerance" if totals[-1]["settled"] else "rounds"
    how = {"estimator": "expected", "steps": rounds, "stopped_by": stopped_by}
    return within_memory(shard, compute, publish), curve, how


def _num_selected(run: Run, moments: Moments, tokens: float) -> float:
    """S: as set, or as many documents of the present kind as have the tokens of the budget."""
    selection = run.settings.selection
    kept = run.receipt("quality", 0).metrics["kept_total"]
    if selection.tokens is None:
        return float(budget.total_budget(selection, run.num_documents))
    per_document = tokens / max(float(moments.count), 1e-9)
    return min(max(selection.tokens / max(per_document, 1e-9), 1.0), float(kept))


def _write_total(
    run: Run,
    number: int,
    terms: tuple[WeightedTerm, ...],
    moments: Moments,
    sample: ShardData,
    totals: Moments,
    share: float | None,
    columns: dict[str, list[Any]],
) -> None:
    active = [term for term in terms if term.weight != 0]
    documents = float(moments.count)
    objective = float(joint_value(active, moments))
    metrics = {
        "share": share,
        "documents": documents,
        "dual_price": exchange.dual_price_of(
            active, moments, sample, documents / float(totals.count)
        ),
        "objective": objective,
        "terms": term_values(terms, moments),
        "scales": {term.objective.name: term.scale for term in terms},
    }
    metrics["settled"] = _has_settled(run, number, objective)
    if share is not None:
        logger.info(
            "round %d: objective %.4f, %.0f %% of it taken",
            number,
            metrics["objective"],
            100 * share,
        )
    selection = run.settings.selection
    if number == selection.rounds and not metrics["settled"] and selection.tolerance:
        logger.warning(
            "round %d: the last that selection.rounds allows, and the objective still rises; raise "
            "it to go on from here",
            number,
        )
    schema = schemas.MOMENTS if number else schemas.CORPUS_STATISTICS
    write_sums(run, "round_total", number, schema, columns, metrics)


def _has_settled(run: Run, number: int, objective: float) -> bool:
    """Whether the last rounds raised the objective by little of what all of them did."""
    if number < ROUNDS_TO_STOP:
        return False
    start, before = (
        run.receipt("round_total", one).metrics["objective"] for one in (0, number - ROUNDS_TO_STOP)
    )
    tolerance = run.settings.selection.tolerance
    return bool(tolerance and objective - before <= tolerance * (objective - start))


def _corpus(run: Run, number: int, device: torch.device) -> exchange.Corpus:
    """What shards are told before the round after this one."""
    metrics = run.receipt("round_total", number).metrics
    terms = scaled_terms(run)
    totals, _ = read_moments(run, "round_total", 0)
    if number:
        moments, _ = read_moments(run, "round_total", number)
    else:
        moments = exchange.agree(terms, totals, totals, metrics["documents"])[1]
    return exchange.Corpus(
        terms,
        moments_on(totals, device),
        moments_on(moments, device),
        metrics["dual_price"],
        metrics["share"],
    )


def _standing(run: Run, shard: int, number: int) -> tuple[torch.Tensor, StepSize | None]:
    """Where a shard stands before a round: its last proposal, as far as it was taken."""
    told = run.receipt("round_total", number - 1).metrics
    if number == 1:
        left = budget.Survivors.of(run.receipt("quality", shard).metrics)
        part = told["documents"] / left.kept_total
        even = torch.logit(torch.tensor(min(max(part, 1e-6), 1 - 1e-6), dtype=torch.float64))
        return torch.full((left.kept,), float(even)), None
    unit = run.round_units(number - 1)[shard]
    run.receipt("round", unit)
    row = read_lists(run, "round", ("before", "proposed", "step_size"), unit)
    before, proposed, step_size = (torch.from_numpy(values.copy()) for values in row.values())
    return exchange.taken(before, proposed, told["share"]), StepSize(*step_size.tolist())
