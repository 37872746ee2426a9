"""Stages of scope `corpus` that exchange sums between shards.

- `corpus_statistics/` holds each shard's part of a sample of the corpus, and the moments of these
  documents; `totals/00.parquet` has estimates of the moments of all documents, a part of the
  sample, and the judge that was learned from it.
- `round/NN/` holds each shard's proposed logits and the moments at these; `totals/NN.parquet` adds
  the moments up, says which fraction of the round is applied, and has the sample's logits.

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
from datamask.learning.data import ShardData, highest_order
from datamask.learning.policy import inclusion_of, long_sum
from datamask.learning.scales import references, scaled
from datamask.objectives.protocol import Moments
from datamask.objectives.weighted import WeightedObjective, WeightedTerm, with_unit
from datamask.runs import budget, schemas
from datamask.runs.run import Run
from datamask.selection import sampling, sums
from datamask.selection.documents import on_device, read_quality, with_vectors
from datamask.selection.rounds import sample_logits
from datamask.selection.terms import terms_of

logger = logging.getLogger(__name__)

ROUNDS_TO_STOP = 2
"""Rounds over which the rise of the objective is measured; a single round may apply little
(docs/log.md#rounds)."""


def shard_statistics(run: Run, shard: int, compute: Compute) -> None:
    """Write a shard's part of a sample of the corpus, and its moments.

    Sums over vectors cover that part, other sums all documents (`sampling.estimated_totals`).
    """
    documents = read_quality(run, shard)
    drawn = sampling.drawn_rows(run, documents)
    sampled = with_vectors(run, documents, drawn)
    moments = on_device(sampled, compute, lambda data: sums.all_moments(run, data))
    moments = sampling.with_known_sums(documents, moments)
    row = sums.moment_row(moments, sums.weighed_tokens(run, documents))
    row |= sampling.sample_columns(sampled, np.arange(len(drawn)))
    sums.write_sums(run, "corpus_statistics", shard, schemas.CORPUS_STATISTICS, [row], {})


def sum_round(run: Run, number: int, compute: Compute) -> None:
    """Write `totals/NN.parquet` with a `Total`: moments of the selection after a round.

    Total 0 has the estimated moments of all documents, and the judge that a sample has taught.
    """
    if number == 0:
        _sum_statistics(run, compute)
    else:
        _sum_proposals(run, number, compute)


def _sum_statistics(run: Run, compute: Compute) -> None:
    """Estimate the moments of all documents, scale the terms, and learn the judge."""
    shards, selection = range(run.num_shards), run.settings.selection
    drawn = sampling.Drawn.read(run)
    [drawn_sums] = sums.read_moments(run, "corpus_statistics", shards)
    totals = sampling.estimated_totals(drawn, drawn_sums)
    tokens = sums.sum_tokens(run, "corpus_statistics", shards)
    kept = drawn.columns(0, sampling.STAND_INS)
    sample = sampling.corpus_sample(run, kept, compute)
    num_selected = _num_selected(run, totals, tokens)
    terms = with_unit(terms_of(run), 1 / sums.level_of_quality(run).unit)
    if selection.scale_terms:
        known = references(terms, totals, sample, num_selected, run.settings.seed)
        terms = scaled(terms, known)
    judge, learned = sampling.learn_judge(drawn, terms, totals, num_selected, compute)
    rows = [sums.moment_row(totals, tokens) | kept, sums.moment_row(judge.slope)]
    if selection.num_rounds == 1:  # The round writes gains at its expected outcome.
        _, expected = judge.judge(drawn.data(0, None, compute), highest_order(terms))
        _, expected = exchange.agree(terms, totals, expected, num_selected)
        rows.append(sums.moment_row(expected))
    total = _valued(run, 0, terms, totals.scaled(num_selected), sample)
    total = replace(total, threshold=judge.threshold, sample=learned)
    _write_total(run, 0, schemas.CORPUS_STATISTICS, rows, total)


def _sum_proposals(run: Run, number: int, compute: Compute) -> None:
    """Add up the shards' proposals, and apply the fraction that is best for the corpus."""
    units, state = run.round_units(number), sums.CorpusState.read(run, number - 1)
    corpus, before = state.corpus, state.total
    proposed, present_sums = sums.read_moments(run, "round", units)
    tokens = sums.sum_tokens(run, "round", units)
    num_selected = _num_selected(run, proposed, tokens)
    start = corpus.moments if number > 1 else present_sums
    share, moments = exchange.agree(corpus.terms, start, proposed, num_selected)
    expected = before.expected + share * (float(proposed.count) - before.expected)
    # The sample may expect to select another fraction of its documents than the corpus does.
    sample = sampling.known_sample(run, compute)
    parts = [sums.read_lists(run, "round", ("sampled",), unit)["sampled"] for unit in units]
    moved = torch.from_numpy(np.concatenate(parts))
    present = exchange.taken(sample_logits(run, state, sample.num_documents), moved, share)
    kept = long_sum(inclusion_of(present)) * num_selected / expected
    excess = long_sum(present - exchange.expecting(present, kept)) / len(present)
    kept = len(present) * num_selected / float(corpus.totals.count)
    logits = exchange.expecting(present, kept)
    is_drawn = exchange.is_better_drawn(corpus.terms, sample, logits, num_selected)
    total = _valued(run, number, corpus.terms, moments, sample)
    total = replace(total, share=share, drawn=is_drawn, expected=expected, excess=excess)
    applied = 100 * share
    logger.info("round %d: objective %.4f, %.0f %% of it applied", number, total.objective, applied)
    rows = [sums.moment_row(moments, tokens) | {"sample_logits": logits.numpy()}]
    _write_total(run, number, schemas.ROUND_TOTAL, rows, total)
    selection = run.settings.selection
    if number == selection.rounds > 1 and not total.settled and selection.tolerance:
        logger.warning(
            "round %d: the objective is still rising, and this is the last round that "
            "selection.rounds allows; raise it to continue",
            number,
        )


def _num_selected(run: Run, moments: Moments, tokens: float) -> float:
    """Return S: as set, or how many documents of the present mean length have the set tokens."""
    selection = run.settings.selection
    survivors = budget.Survivors.of(run.receipt("quality", 0).metrics)
    units = float(budget.corpus_units(selection, run.num_documents, survivors))
    if selection.tokens is None:
        return units
    per_document = tokens / max(float(moments.count), 1e-9)
    return min(max(units / max(per_document, 1e-9), 1.0), float(survivors.kept_total))


def _valued(
    run: Run,
    number: int,
    terms: tuple[WeightedTerm, ...],
    moments: Moments,
    sample: ShardData,
) -> sums.Total:
    """Evaluate the objective of the corpus at some moments; return the `Total` for them."""
    level, documents = sums.level_of_quality(run), float(moments.count)
    weighted = WeightedObjective(terms)
    values = weighted.at_level(sums.term_values(terms, moments), level)
    objective = weighted.as_reported(level).join(values)
    fraction = documents / run.receipt("quality", 0).metrics["kept_total"]
    return sums.Total(
        documents=documents,
        expected=documents,
        dual_price=exchange.dual_price_of(weighted.active, moments, sample, fraction),
        objective=objective,
        terms=values,
        scales={term.objective.name: term.scale for term in terms},
        settled=_has_settled(run, number, objective),
    )


def _write_total(
    run: Run, number: int, schema: pa.Schema, rows: list[dict[str, Any]], total: sums.Total
) -> None:
    metrics = {name: value for name, value in asdict(total).items() if value is not None}
    sums.write_sums(run, "round_total", number, schema, rows, metrics)


def _has_settled(run: Run, number: int, objective: float) -> bool:
    """Return True if the last rounds raised the objective by a small fraction of its whole rise.

    Of scaled terms, the rise counts as 1 at most, what quality and metric can gain together. Else
    a further term of large weight, which is balanced first, would end the rounds before quality
    and metric have risen.
    """
    if number < ROUNDS_TO_STOP:
        return False
    rounds = (0, number - ROUNDS_TO_STOP)
    start, before = (sums.Total.read(run, earlier).objective for earlier in rounds)
    selection, rise = run.settings.selection, objective - start
    if selection.scale_terms:
        rise = min(rise, 1.0)
    return bool(selection.tolerance and objective - before <= selection.tolerance * rise)
