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
from typing import Any

import numpy as np
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
    PRESENT,
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

    Raises:
        RunError: an input is missing or stale.
        CorruptFileError: the inputs do not hold the same documents.
    """
    drawn = drawn_rows(run, shard)
    documents = read_documents(run, shard, compute, "corpus_statistics", drawn)
    moments = on_device(shard, documents, compute, lambda data: all_moments(run, data))
    moments = with_known_sums(run, shard, moments)
    row = moment_row(moments, float(tokens_of(run, shard).sum()))
    row |= sample_columns(documents, np.arange(len(drawn)))
    return write_sums(run, "corpus_statistics", shard, schemas.CORPUS_STATISTICS, [row], {})


def _sum_statistics(run: Run, compute: Compute) -> None:
    """Write `totals/00.parquet`: estimated moments of all documents, and what a sample has learned.

    The metrics of the receipt also have the `threshold` of the judge, and the `sample` that it was
    learned from (`learn_judge`).
    """
    shards = range(run.num_shards)
    sums, drawn = read_moments(run, "corpus_statistics", shards), Drawn.read(run)
    totals = estimated_totals(drawn, sums)
    tokens = sum_tokens(run, "corpus_statistics", shards)
    kept = drawn.columns(0, stand_ins(run.settings.selection))
    sample = corpus_sample(run, kept, compute)
    num_selected = _num_selected(run, totals, tokens)
    terms = terms_of(run)
    if run.settings.selection.scale_terms:
        seed = run.settings.seed
        terms = scaled(terms, random_subsets(terms, totals, sample, num_selected, seed))
    judge, found = learn_judge(drawn, terms, totals, num_selected, compute)
    rows = [moment_row(totals, tokens) | kept, moment_row(judge.slope)]
    metrics: dict[str, Any] = {"threshold": judge.threshold, "sample": found}
    if run.settings.selection.num_rounds == 1:  # the round writes gains at what is expected of it
        _, expected = judge.judge(drawn.data(0, None, compute), moment_order(run))
        _, expected = exchange.agree(terms, totals, expected, num_selected)
        rows.append(moment_row(expected))
    start = scaled_moments(totals, num_selected)
    _write_total(run, 0, terms, start, sample, rows, metrics)


def sum_round(run: Run, number: int, compute: Compute) -> None:
    """Write `totals/NN.parquet`: moments of the selection after a round, and a dual price.

    Total 0 is of all documents, as estimated. The metrics of the receipt are those of the corpus,
    as expected before any document is finally in or out: the `share` of the round that was applied,
    whether masks are `drawn` if it is the last (`policy.expected_mask`), `documents` (S), as many
    as the logits `expected` (Σ p, which a sample predicts), the `excess` that the next round
    subtracts from logits so that these expect S, `dual_price`, `objective`, the raw values of the
    `terms`, their `scales`, and whether the objective has `settled`: over the last
    two rounds, it rose by at most `selection.tolerance` of its rise since before the first round.

    Raises:
        RunError: a shard has not done the round.
    """
    if number == 0:
        _sum_statistics(run, compute)
        return
    units = run.round_units(number)
    proposed, tokens = read_moments(run, "round", units), sum_tokens(run, "round", units)
    corpus = known_corpus(run, number - 1, torch.device("cpu"))
    num_selected = _num_selected(run, proposed, tokens)
    parts = [read_lists(run, "round", ("sampled",), unit)["sampled"] for unit in units]
    before, after = sample_logits(run, number - 1), torch.from_numpy(np.concatenate(parts))
    sample = corpus_sample(run, read_lists(run, "round_total", SAMPLED), compute)
    start = corpus.moments if number > 1 else read_moments(run, "round", units, PRESENT)
    share, moments = exchange.agree(corpus.terms, start, proposed, num_selected)
    expected = run.receipt("round_total", number - 1).metrics["expected"]
    expected += share * (float(proposed.count) - expected)
    present = exchange.taken(before, after, share)
    # The sample may expect another part of its documents than the corpus does.
    kept = long_sum(inclusion_of(present)) * num_selected / expected
    excess = long_sum(present - exchange.expecting(present, kept)) / len(present)
    kept = len(before) * num_selected / float(corpus.totals.count)
    logits = exchange.expecting(present, kept)
    metrics = {
        "share": share,
        "drawn": exchange.is_better_drawn(corpus.terms, sample, logits, num_selected),
        "expected": expected,
        "excess": excess,
    }
    rows = [moment_row(moments, tokens) | {"sample_logits": logits.numpy()}]
    _write_total(run, number, corpus.terms, moments, sample, rows, metrics)


def _num_selected(run: Run, moments: Moments, tokens: float) -> float:
    """S: as set, or the number of documents, at their present mean length, that meet the tokens.

    Raises:
        SettingsError: the corpus has less than the budget.
    """
    selection = run.settings.selection
    left = budget.Survivors.of(run.receipt("quality", 0).metrics)
    units = float(budget.corpus_units(selection, run.num_documents, left))
    if selection.tokens is None:
        return units
    per_document = tokens / max(float(moments.count), 1e-9)
    return min(max(units / max(per_document, 1e-9), 1.0), float(left.kept_total))


def _write_total(
    run: Run,
    number: int,
    terms: tuple[WeightedTerm, ...],
    moments: Moments,
    sample: ShardData,
    rows: list[dict[str, Any]],
    found: dict[str, Any],
) -> None:
    active = [term for term in terms if term.weight != 0]
    documents = float(moments.count)
    weighted = WeightedObjective(terms)
    values = weighted.at_level(term_values(terms, moments), centre_of_quality(run))
    objective = weighted.join(values)
    part = documents / run.receipt("quality", 0).metrics["kept_total"]
    metrics = {
        "share": None,
        "documents": documents,
        "expected": documents,
        "excess": 0.0,
        "dual_price": exchange.dual_price_of(active, moments, sample, part),
        "objective": objective,
        "terms": values,
        "scales": {term.objective.name: term.scale for term in terms},
        "settled": _has_settled(run, number, objective),
        **found,
    }
    if number:
        applied = 100 * found["share"]
        logger.info("round %d: objective %.4f, %.0f %% of it applied", number, objective, applied)
    selection = run.settings.selection
    if number == selection.rounds > 1 and not metrics["settled"] and selection.tolerance:
        logger.warning(
            "round %d: the objective is still rising, and this is the last round that "
            "selection.rounds allows; raise it to continue",
            number,
        )
    schema = schemas.ROUND_TOTAL if number else schemas.CORPUS_STATISTICS
    write_sums(run, "round_total", number, schema, rows, metrics)


def _has_settled(run: Run, number: int, objective: float) -> bool:
    """Whether the last rounds raised the objective by a small share of its whole rise."""
    if number < ROUNDS_TO_STOP:
        return False
    start, before = (
        run.receipt("round_total", one).metrics["objective"] for one in (0, number - ROUNDS_TO_STOP)
    )
    tolerance = run.settings.selection.tolerance
    return bool(tolerance and objective - before <= tolerance * (objective - start))
