"""Stages `corpus_statistics`, `round` and `round_total`: shards exchange sums (scope `corpus`).

- `corpus_statistics/` holds each shard's part of a sample of the corpus, and the moments of these
  documents; `totals/00.parquet` has estimates of the moments of all documents, a part of the
  sample, and what was learned from it.
- `round/NN/` holds each shard's proposed logits and the moments at these; `totals/NN.parquet` adds
  the moments up, says what share of the round is applied, and has the sample's logits.

The mathematics is in `datamask.learning.exchange`. Moments are added in the order of shards, in
float64, so the bytes do not depend on the number of workers. A shard reads only the totals, never
the file of another shard.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from datamask.config.compute import Compute
from datamask.learning import exchange
from datamask.learning.data import ShardData, scaled_moments
from datamask.learning.policy import inclusion_of, long_sum
from datamask.learning.scales import random_subsets, scaled
from datamask.objectives.protocol import Moments
from datamask.objectives.weighted import WeightedObjective, WeightedTerm
from datamask.runs import budget, schemas
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run
from datamask.selection.documents import on_device, read_documents
from datamask.selection.rounds import known_corpus, sample_logits
from datamask.selection.sampling import (
    SAMPLED,
    Drawn,
    corpus_sample,
    drawn_rows,
    estimated_totals,
    learn_judge,
    sample_columns,
    stand_ins,
    with_known_sums,
)
from datamask.selection.sums import (
    RoundRow,
    Total,
    all_moments,
    centre_of_quality,
    moment_order,
    moment_row,
    read_lists,
    read_moments,
    sum_tokens,
    term_values,
    tokens_of,
    write_sums,
)
from datamask.selection.terms import terms_of

logger = logging.getLogger(__name__)

ROUNDS_TO_STOP = 2
"""Rounds over which the rise of the objective is measured; a single round may apply little
(docs/log.md#rounds)."""


def shard_statistics(run: Run, shard: int, compute: Compute) -> Receipt:
    """Write a shard's part of a sample of the corpus, and its moments.

    Sums over vectors are of that part, others of all documents (`sampling.estimated_totals`).
    """
    drawn = drawn_rows(run, shard)
    documents = read_documents(run, shard, compute, "corpus_statistics", drawn)
    moments = on_device(shard, documents, compute, lambda data: all_moments(run, data))
    moments = with_known_sums(run, shard, moments)
    row = moment_row(moments, float(tokens_of(run, shard).sum()))
    row |= sample_columns(documents, np.arange(len(drawn)))
    return write_sums(run, "corpus_statistics", shard, schemas.CORPUS_STATISTICS, [row], {})


def sum_round(run: Run, number: int, compute: Compute) -> None:
    """Write `totals/NN.parquet` with a `Total`: moments of the selection after a round.

    Total 0 has the estimated moments of all documents, and what a sample has learned.
    """
    if number == 0:
        _sum_statistics(run, compute)
    else:
        _sum_proposals(run, number, compute)


def _sum_statistics(run: Run, compute: Compute) -> None:
    """Estimate the moments of all documents, scale the terms, and learn the judge."""
    shards, selection = range(run.num_shards), run.settings.selection
    drawn = Drawn.read(run)
    totals = estimated_totals(drawn, read_moments(run, "corpus_statistics", shards))
    tokens = sum_tokens(run, "corpus_statistics", shards)
    kept = drawn.columns(0, stand_ins(selection))
    sample, num_selected = corpus_sample(run, kept, compute), _num_selected(run, totals, tokens)
    terms = terms_of(run)
    if selection.scale_terms:
        random = random_subsets(terms, totals, sample, num_selected, run.settings.seed)
        terms = scaled(terms, random)
    judge, learned = learn_judge(drawn, terms, totals, num_selected, compute)
    rows = [moment_row(totals, tokens) | kept, moment_row(judge.slope)]
    if selection.num_rounds == 1:  # the round writes gains at what is expected of it
        _, expected = judge.judge(drawn.data(0, None, compute), moment_order(run))
        _, expected = exchange.agree(terms, totals, expected, num_selected)
        rows.append(moment_row(expected))
    total = _valued(run, 0, terms, scaled_moments(totals, num_selected), sample)
    total = replace(total, threshold=judge.threshold, sample=learned)
    _write_total(run, 0, schemas.CORPUS_STATISTICS, rows, total)


def _sum_proposals(run: Run, number: int, compute: Compute) -> None:
    """Add up what the shards propose, and apply the share of it that is best for the corpus."""
    units, before = run.round_units(number), Total.read(run, number - 1)
    corpus = known_corpus(run, number - 1, torch.device("cpu"))
    proposed, tokens = read_moments(run, "round", units), sum_tokens(run, "round", units)
    num_selected = _num_selected(run, proposed, tokens)
    start = corpus.moments if number > 1 else read_moments(run, "round", units, RoundRow.PRESENT)
    share, moments = exchange.agree(corpus.terms, start, proposed, num_selected)
    expected = before.expected + share * (float(proposed.count) - before.expected)
    # The sample may expect another part of its documents than the corpus does.
    sample = corpus_sample(run, read_lists(run, "round_total", SAMPLED), compute)
    parts = [read_lists(run, "round", ("sampled",), unit)["sampled"] for unit in units]
    moved = torch.from_numpy(np.concatenate(parts))
    present = exchange.taken(sample_logits(run, number - 1), moved, share)
    kept = long_sum(inclusion_of(present)) * num_selected / expected
    excess = long_sum(present - exchange.expecting(present, kept)) / len(present)
    kept = len(present) * num_selected / float(corpus.totals.count)
    logits = exchange.expecting(present, kept)
    is_drawn = exchange.is_better_drawn(corpus.terms, sample, logits, num_selected)
    total = _valued(run, number, corpus.terms, moments, sample)
    total = replace(total, share=share, drawn=is_drawn, expected=expected, excess=excess)
    applied = 100 * share
    logger.info("round %d: objective %.4f, %.0f %% of it applied", number, total.objective, applied)
    rows = [moment_row(moments, tokens) | {"sample_logits": logits.numpy()}]
    _write_total(run, number, schemas.ROUND_TOTAL, rows, total)
    selection = run.settings.selection
    if number == selection.rounds > 1 and not total.settled and selection.tolerance:
        logger.warning(
            "round %d: the objective is still rising, and this is the last round that "
            "selection.rounds allows; raise it to continue",
            number,
        )


def _num_selected(run: Run, moments: Moments, tokens: float) -> float:
    """S: as set, or the number of documents, at their present mean length, that meet the tokens."""
    selection = run.settings.selection
    left = budget.Survivors.of(run.receipt("quality", 0).metrics)
    units = float(budget.corpus_units(selection, run.num_documents, left))
    if selection.tokens is None:
        return units
    per_document = tokens / max(float(moments.count), 1e-9)
    return min(max(units / max(per_document, 1e-9), 1.0), float(left.kept_total))


def _valued(
    run: Run,
    number: int,
    terms: tuple[WeightedTerm, ...],
    moments: Moments,
    sample: ShardData,
) -> Total:
    """The objective of the corpus at some moments, and what follows from it."""
    active, documents = [term for term in terms if term.weight != 0], float(moments.count)
    weighted = WeightedObjective(terms)
    values = weighted.at_level(term_values(terms, moments), centre_of_quality(run))
    objective = weighted.join(values)
    part = documents / run.receipt("quality", 0).metrics["kept_total"]
    return Total(
        documents=documents,
        expected=documents,
        dual_price=exchange.dual_price_of(active, moments, sample, part),
        objective=objective,
        terms=values,
        scales={term.objective.name: term.scale for term in terms},
        settled=_has_settled(run, number, objective),
    )


def _write_total(
    run: Run, number: int, schema: pa.Schema, rows: list[dict[str, Any]], total: Total
) -> None:
    metrics = {name: value for name, value in asdict(total).items() if value is not None}
    write_sums(run, "round_total", number, schema, rows, metrics)


def _has_settled(run: Run, number: int, objective: float) -> bool:
    """Whether the last rounds raised the objective by a small share of its whole rise."""
    if number < ROUNDS_TO_STOP:
        return False
    start, before = (Total.read(run, one).objective for one in (0, number - ROUNDS_TO_STOP))
    tolerance = run.settings.selection.tolerance
    return bool(tolerance and objective - before <= tolerance * (objective - start))
