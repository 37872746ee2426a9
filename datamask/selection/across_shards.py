"""Stages `corpus_statistics`, `round` and `round_total`: shards exchange sums (scope `corpus`).

- `corpus_statistics/` holds the moments of all documents of each shard, and its part of a sample of
  the corpus; `totals/00.parquet` holds both for the corpus, and what was learned from the sample.
- `round/NN/` holds each shard's proposed logits and the moments at these; `totals/NN.parquet` adds
  the moments up, says what share of the round is applied, and has the sample's logits.

The mathematics is in `datamask.learning.exchange`. A file is one row. Moments are added in the
order of shards, in float64, so the bytes do not depend on the number of workers. A shard's file is
a few megabytes (its moments, and eight bytes per document), and a shard reads only the totals,
never the file of another shard.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch

from datamask.config.compute import Compute
from datamask.learning import exchange, published
from datamask.learning.data import (
    ShardData,
    map_moments,
    moments_of,
    scaled_moments,
    zero_moments,
)
from datamask.learning.expected import StepSize
from datamask.learning.moment_gradient import along_all, joint_value
from datamask.learning.policy import expected_mask
from datamask.learning.scales import random_subsets, scaled
from datamask.objectives.protocol import Moments
from datamask.objectives.weighted import WeightedTerm, build_terms, is_linear
from datamask.runs import budget, schemas
from datamask.runs.checkpoints import Checkpoints
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run, shard_seed
from datamask.selection import one_pass
from datamask.selection.documents import ShardDocuments, read_documents, within_memory
from datamask.selection.sampling import (
    SAMPLED,
    Drawn,
    corpus_sample,
    drawn_rows,
    learn_judge,
    sample_columns,
    sample_places,
    sampled_rows,
    stand_ins,
)
from datamask.selection.sums import (
    learner_data,
    moment_columns,
    moment_order,
    read_lists,
    read_moments,
    scaled_terms,
    sum_moments,
    term_values,
    tokens_of,
    write_sums,
)

logger = logging.getLogger(__name__)

ROUNDS_TO_STOP = 2
"""Rounds over which the rise of the objective is measured; a single round may apply little
(docs/log.md#rounds)."""


def shard_statistics(run: Run, shard: int, compute: Compute) -> Receipt:
    """Write the moments of all documents of a shard, and its part of a sample of the corpus.

    In one pass, sums over vectors are of that part (`one_pass.estimated_totals`).

    Raises:
        RunError: an input is missing or stale.
        CorruptFileError: the inputs do not hold the same documents.
    """
    drawn = drawn_rows(run, shard)
    rows = drawn if run.settings.selection.one_pass else None
    documents = read_documents(run, shard, compute, "corpus_statistics", rows)

    def add_up(compute: Compute) -> Moments:
        data = learner_data(documents, compute)
        return moments_of(data, torch.ones_like(data.quality_N), moment_order(run), data.product)

    moments = within_memory(shard, compute, add_up)
    if rows is not None:
        moments, drawn = one_pass.with_known_sums(run, shard, moments), np.arange(len(rows))
    columns = moment_columns(moments, float(tokens_of(run, shard).sum()))
    columns |= sample_columns(documents, drawn)
    receipt = write_sums(run, "corpus_statistics", shard, schemas.CORPUS_STATISTICS, columns, {})
    Checkpoints(run, "corpus_statistics", shard, None, 0).clear()
    return receipt


def _sum_statistics(run: Run, compute: Compute) -> None:
    """Write `totals/00.parquet`: moments and sample of all documents, and what was learned from it.

    The metrics of the receipt also have the `threshold` of the judge, and the `sample` that it was
    learned from (`learn_judge`).
    """
    totals, tokens = sum_moments(run, "corpus_statistics", range(run.num_shards))
    drawn, in_one_pass = Drawn.read(run), run.settings.selection.one_pass
    totals = one_pass.estimated_totals(drawn, totals) if in_one_pass else totals
    kept = drawn.columns(0, stand_ins(run.settings.selection))
    sample = corpus_sample(run, kept, compute)
    num_selected = _num_selected(run, totals, tokens)
    terms = build_terms(run.settings.selection)
    if run.settings.selection.scale_terms:
        seed = run.settings.seed
        terms = scaled(terms, random_subsets(terms, totals, sample, num_selected, seed))
    judge, found = learn_judge(drawn, terms, totals, num_selected, compute)
    columns = moment_columns(totals, tokens) | kept
    slope = moment_columns(judge.slope, 0.0) | {name: [[]] for name in SAMPLED}
    rows, metrics = [columns, slope], {"threshold": judge.threshold, "sample": found}
    if in_one_pass:
        active = [term for term in terms if term.weight != 0]
        moments, found = one_pass.predict(drawn, judge, active, totals, num_selected, compute)
        metrics["predicted"] = found
        rows.append(moment_columns(moments, 0.0) | {name: [[]] for name in SAMPLED})
    columns = {name: [row[name][0] for row in rows] for name in columns}
    start = scaled_moments(totals, num_selected)
    _write_total(run, 0, terms, start, sample, totals, columns, metrics)


def learn_round(run: Run, unit: int, compute: Compute) -> Receipt:
    """Write a shard's file of a round: its proposed logits, and the moments at these.

    Args:
        run: the run.
        unit: identifies shard and round (`Run.round_units`).
        compute: device and memory.

    Raises:
        RunError: an input is missing or stale.
        CorruptFileError: the inputs do not hold the same documents.
    """
    shard, number = run.shard_of("round", unit), unit // run.num_shards + 1
    documents = read_documents(run, shard, compute, "round")
    logits, last_size = _present_logits(run, shard, number)
    seed = shard_seed(shard_seed(run.settings.seed, shard), number)

    def propose(compute: Compute) -> exchange.Proposal:
        data = learner_data(documents, compute)
        if not data.num_documents:
            return exchange.Proposal(logits, zero_moments(data, moment_order(run)), StepSize())
        corpus = _corpus(run, number - 1, data.device)
        if run.settings.selection.one_pass:
            judged = along_all(corpus.judge.slope, data) - corpus.judge.threshold
            return exchange.Proposal(judged, zero_moments(data, 0), StepSize())
        others = _others(run, shard, number - 1, compute) if number > 1 else None
        generator = torch.Generator().manual_seed(seed)
        return exchange.propose(data, corpus, logits.to(data.device), last_size, others, generator)

    proposal = within_memory(shard, compute, propose)
    proposed, step_size = proposal.logits_N.cpu(), proposal.step_size
    tokens = tokens_of(run, shard) @ torch.sigmoid(proposed).to(torch.float64).numpy()
    columns = {
        **moment_columns(proposal.moments, float(tokens)),
        "before": [logits.numpy()],
        "proposed": [proposed.numpy()],
        "sampled": [proposed.numpy()[sampled_rows(run, shard)]],
        "step_size": [np.array([step_size.move, step_size.longest, step_size.scale])],
    }
    if not run.settings.selection.one_pass:
        return write_sums(run, "round", unit, schemas.ROUND, columns, {})
    rows, columns["gains"] = one_pass.later_needs(
        run, shard, documents, scaled_terms(run), logits.numpy(), proposed.numpy(), compute
    )
    none = {name: [values[0][:0]] for name, values in columns.items() if name not in rows[0]}
    rows = [columns | rows[0], *(none | row for row in rows[1:])]
    columns = {name: [row[name][0] for row in rows] for name in columns}
    receipt = write_sums(run, "round", unit, schemas.ONE_PASS_ROUND, columns, {})
    Checkpoints(run, "round", shard, None, 0).clear()
    return receipt


def sum_round(run: Run, number: int, compute: Compute) -> None:
    """Write `totals/NN.parquet`: moments of the selection after a round, and a dual price.

    Total 0 is of all documents. The metrics of the receipt are those of the corpus, as expected
    before any document is finally in or out: the `share` of the round that was applied, whether
    masks are `drawn` if it is the last (`policy.expected_mask`), `documents` (S), as many as the
    logits `expected` (Σ p, which a sample predicts), `dual_price`, `objective`, the raw values of
    the `terms`, their `scales`, and whether the objective has `settled`: over the last two rounds,
    it rose by at most `selection.tolerance` of its rise since before the first round.

    Raises:
        RunError: a shard has not done the round.
    """
    if number == 0:
        _sum_statistics(run, compute)
        return
    units = run.round_units(number)
    proposed, tokens = sum_moments(run, "round", units)
    corpus = _corpus(run, number - 1, torch.device("cpu"))
    num_selected = _num_selected(run, proposed, tokens)
    parts = [read_lists(run, "round", ("sampled",), unit)["sampled"] for unit in units]
    before, after = _sample_logits(run, number - 1), torch.from_numpy(np.concatenate(parts))
    sample = corpus_sample(run, read_lists(run, "round_total", SAMPLED), compute)
    if run.settings.selection.one_pass:
        predicted = run.receipt("round_total", 0).metrics["predicted"]
        found: dict[str, Any] = {name: predicted[name] for name in ("share", "drawn")}
        chosen = proposed if float(proposed.count) else corpus.moments
        moments = scaled_moments(chosen, num_selected)
        logits = exchange.taken(before, after, found["share"])
    else:
        share, moments = exchange.agree(corpus.terms, corpus.moments, proposed, num_selected)
        kept = len(before) * num_selected / float(corpus.totals.count)
        logits = exchange.expecting(exchange.taken(before, after, share), kept)
        is_drawn = exchange.is_better_drawn(corpus.terms, sample, logits, num_selected)
        start = run.receipt("round_total", number - 1).metrics["expected"]
        expected = start + share * (float(proposed.count) - start)
        found = {"share": share, "drawn": is_drawn, "expected": expected}
    columns = moment_columns(moments, tokens)
    columns["sample_logits"] = [logits.numpy()]
    _write_total(run, number, corpus.terms, moments, sample, corpus.totals, columns, found)


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
    present, _ = _present_logits(run, shard, rounds + 1)
    corpus = _corpus(run, rounds, torch.device("cpu"))
    terms = [term for term in corpus.terms if term.weight != 0]
    totals = [run.receipt("round_total", number).metrics for number in range(rounds + 1)]
    is_drawn, in_one_pass = totals[-1]["drawn"], run.settings.selection.one_pass
    if not in_one_pass:  # there, the mask is the one that was predicted
        part = float(torch.sigmoid(present.to(torch.float64)).sum()) / totals[-1]["expected"]
        present = exchange.expecting(present, part * totals[-1]["documents"])
    mask = expected_mask(present, is_drawn).numpy()

    def gains(compute: Compute) -> np.ndarray:
        data = learner_data(documents, compute)
        moments = map_moments(lambda one: one.to(data.device), corpus.moments)
        return published.gains(data, terms, torch.from_numpy(mask).to(data.device), moments)

    if not in_one_pass:
        values = within_memory(shard, compute, gains) - totals[-1]["dual_price"]
    else:
        found = read_lists(run, "round", ("gains",), shard)["gains"]
        values = found.astype(np.float64) - totals[0]["predicted"]["dual_price"]
    values *= published.unit(
        float(corpus.moments.count),
        float(corpus.totals.count),
        run.settings.selection.scale_terms,
    )
    # If the gain does not depend on other documents, its sign decides.
    logits = published.on_side(values, values > 0 if is_linear(terms) else mask)
    curve: dict[str, list[float]] = {
        "step": list(range(rounds + 1)),
        "seconds": [0.0] * (rounds + 1),
        "objective": [metrics["objective"] for metrics in totals],
    }
    curve |= {name: [metrics["terms"][name] for metrics in totals] for name in totals[0]["terms"]}
    stopped_by = "tolerance" if totals[-1]["settled"] else "rounds"
    how = {
        "estimator": "expected",
        "steps": rounds,
        "stopped_by": stopped_by,
        "drawn": is_drawn,
    }
    return logits, curve, how


def _num_selected(run: Run, moments: Moments, tokens: float) -> float:
    """S: as set, or the number of documents, at their present mean length, that meet the tokens."""
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
    columns: dict[str, list[Any]],
    found: dict[str, Any],
) -> None:
    active = [term for term in terms if term.weight != 0]
    documents = float(moments.count)
    objective = float(joint_value(active, moments))
    part = documents / float(totals.count)
    metrics = {
        "share": None,
        "documents": documents,
        "expected": documents,
        "dual_price": exchange.dual_price_of(active, moments, sample, part),
        "objective": objective,
        "terms": term_values(terms, moments),
        "scales": {term.objective.name: term.scale for term in terms},
        "settled": _has_settled(run, number, objective),
        **found,
    }
    if number:
        applied = 100 * found["share"]
        logger.info("round %d: objective %.4f, %.0f %% of it applied", number, objective, applied)
    selection = run.settings.selection
    can_go_on = not selection.one_pass and selection.tolerance
    if number == selection.rounds and not metrics["settled"] and can_go_on:
        logger.warning(
            "round %d: the objective is still rising, and this is the last round that "
            "selection.rounds allows; raise it to continue",
            number,
        )
    schema = schemas.ROUND_TOTAL if number else schemas.CORPUS_STATISTICS
    write_sums(run, "round_total", number, schema, columns, metrics)


def _has_settled(run: Run, number: int, objective: float) -> bool:
    """Whether the last rounds raised the objective by a small share of its whole rise."""
    if number < ROUNDS_TO_STOP:
        return False
    start, before = (
        run.receipt("round_total", one).metrics["objective"] for one in (0, number - ROUNDS_TO_STOP)
    )
    tolerance = run.settings.selection.tolerance
    return bool(tolerance and objective - before <= tolerance * (objective - start))


def _corpus(run: Run, number: int, device: torch.device) -> exchange.Corpus:
    """What shards know before the round after this one."""
    metrics = run.receipt("round_total", number).metrics
    totals, moments, slope = (
        map_moments(lambda total: total.to(device), read_moments(run, "round_total", *place)[0])
        for place in ((0, 0), (number, 0), (0, 1))
    )
    judge = exchange.Judge(slope, run.receipt("round_total", 0).metrics["threshold"])
    moments = scaled_moments(moments, metrics["documents"])
    return exchange.Corpus(scaled_terms(run), totals, moments, judge)


def _others(run: Run, shard: int, number: int, compute: Compute) -> tuple[ShardData, torch.Tensor]:
    """The sample's documents of other shards, and their logits after a round."""
    sample = corpus_sample(run, read_lists(run, "round_total", SAMPLED), compute)
    is_other = torch.ones(sample.num_documents, dtype=torch.bool)
    is_other[sample_places(run, shard)] = False
    rows = is_other.nonzero()[:, 0]
    return sample.part(rows), _sample_logits(run, number)[rows]


def _sample_logits(run: Run, number: int) -> torch.Tensor:
    """The logits of the sample's documents after a round; even before the first."""
    if number:
        lists = read_lists(run, "round_total", ("sample_logits",), number)
        return torch.from_numpy(lists["sample_logits"].copy())
    last = sample_places(run, run.num_shards - 1).stop
    return torch.full((last,), _even_logit(run))


def _even_logit(run: Run) -> float:
    """The logit of every document before the first round."""
    metrics = run.receipt("round_total", 0).metrics
    part = metrics["documents"] / run.receipt("quality", 0).metrics["kept_total"]
    return float(torch.logit(torch.tensor(part, dtype=torch.float64).clamp(1e-6, 1 - 1e-6)))


def _present_logits(run: Run, shard: int, number: int) -> tuple[torch.Tensor, StepSize | None]:
    """A shard's logits before a round: its last proposal, as far as it was applied."""
    total = run.receipt("round_total", number - 1).metrics
    if number == 1:
        left = budget.Survivors.of(run.receipt("quality", shard).metrics)
        return torch.full((left.kept,), _even_logit(run)), None
    unit = run.round_units(number - 1)[shard]
    run.receipt("round", unit)
    row = read_lists(run, "round", ("before", "proposed", "step_size"), unit)
    before, proposed, step_size = (torch.from_numpy(values.copy()) for values in row.values())
    return exchange.taken(before, proposed, total["share"]), StepSize(*step_size.tolist())
