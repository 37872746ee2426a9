"""Stages `survey`, `round-N` and `total-N`: shards of a run exchange sums (scope `corpus`).

`survey/` has the moments of every shard's documents, and a few of these as its part of a sample of
the corpus; `totals/0.parquet` has all of them together. `round-N/` has the moments of what every
shard would select, and the logits that say so; `totals/N.parquet` adds those up and says how much
of the round is taken. The mathematics is in `datamask.learning.exchange`; here it meets files.

A file is one row. Moments are sums, and are added in the order of shards, in float64: the same
bytes however many workers there were. A shard's file is a few megabytes (the moments, and four
bytes twice for every document), and no shard ever reads another's: only the total.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from datamask import budget, schemas
from datamask.config import Compute
from datamask.learning import exchange, published
from datamask.learning.data import ShardData, highest_order, moments_of, zero_moments
from datamask.learning.expected import Pace
from datamask.learning.learner import shard_data
from datamask.learning.moment_gradient import joint_value
from datamask.learning.policy import top_mask
from datamask.learning.shard import ShardDocuments, read_documents, read_tokens, within_memory
from datamask.objectives.protocol import MomentObjective, Moments
from datamask.objectives.weighted import WeightedTerm, build_terms
from datamask.store import Receipt, Run, read_columns, shard_seed, write_parquet

logger = logging.getLogger(__name__)

SAMPLE = 16_384
"""Documents of the corpus from which scales and prices are read off."""

ROUNDS_TO_STOP = 2
"""Rounds over which the objective's rise is looked at; in one of them little may be taken."""

SAMPLED = ("sample_features", "sample_quality", "sample_scores")


def survey_shard(run: Run, shard: int, compute: Compute) -> Receipt:
    """Write `survey/NNNNN.parquet`: moments of all documents of a shard, and its part of a sample.

    Raises:
        RunError: an input is not there yet.
        CorruptFileError: the inputs do not hold the same documents.
    """
    documents = read_documents(run, shard)

    def add_up(compute: Compute) -> Moments:
        data = _data(documents, compute)
        return moments_of(data, torch.ones_like(data.quality_N), _order(run), data.product)

    moments = within_memory(shard, compute, add_up)
    left = budget.Survivors.of(run.receipt("quality", shard).figures)
    size = budget.shard_budget(
        min(SAMPLE, left.kept_total), left.kept_before, left.kept, left.kept_total
    )
    generator = np.random.Generator(np.random.PCG64(shard_seed(run.settings.seed, shard)))
    rows = np.sort(generator.permutation(left.kept)[:size])
    scores = [documents.scores[name][rows] for name in documents.scores]
    columns = {
        **_columns(moments, float(_tokens(run, shard).sum())),
        "sample_features": [np.asarray(documents.features[rows], np.float16).ravel()],
        "sample_quality": [documents.quality[rows]],
        "sample_scores": [np.concatenate([*scores, np.zeros(0, np.float32)])],
    }
    return _write(run, "survey", shard, schemas.SURVEY, columns, {})


def sum_survey(run: Run, compute: Compute, number: int = 0) -> None:
    """Write `totals/0.parquet`: moments of all documents, the terms' scales, and the first price.

    Raises:
        RunError: a shard has not been surveyed.
    """
    totals, tokens = _sum(run, "survey")
    drawn = _drawn(run)
    sample = _sample(run, drawn, compute)
    num_selected = _num_selected(run, totals, tokens)
    terms = build_terms(run.settings.selection)
    if run.settings.selection.scale_terms:
        terms = exchange.scale_terms(terms, totals, sample, num_selected)
    start = exchange.agree(terms, totals, totals, num_selected)[1]
    columns = _columns(totals, tokens) | drawn
    _write_total(run, number, terms, start, sample, totals, None, columns)


def learn_round(run: Run, shard: int, compute: Compute, number: int) -> Receipt:
    """Write a shard's file of a round: where it would go, and the moments of that.

    Raises:
        RunError: an input is not there yet.
        CorruptFileError: the inputs do not hold the same documents.
    """
    documents = read_documents(run, shard)
    logits, pace = _standing(run, shard, number)
    seed = shard_seed(shard_seed(run.settings.seed, shard), number)

    def propose(compute: Compute) -> exchange.Proposal:
        data = _data(documents, compute)
        if not data.num_documents:
            return exchange.Proposal(logits, zero_moments(data, _order(run)), Pace())
        corpus = _corpus(run, number - 1, data.device)
        generator = torch.Generator().manual_seed(seed)
        return exchange.propose(data, corpus, logits.to(data.device), pace, generator)

    proposal = within_memory(shard, compute, propose)
    proposed = proposal.logits_N.cpu()
    tokens = _tokens(run, shard) @ torch.sigmoid(proposed).to(torch.float64).numpy()
    columns = {
        **_columns(proposal.moments, float(tokens)),
        "before": [logits.numpy()],
        "proposed": [proposed.numpy()],
        "pace": [[proposal.pace.move, proposal.pace.longest, proposal.pace.scale]],
    }
    return _write(run, f"round-{number}", shard, schemas.ROUND, columns, {})


def sum_round(run: Run, compute: Compute, number: int) -> None:
    """Write `totals/N.parquet`: moments of what is selected after a round, and the next price.

    The receipt's figures: `share` of the round that was taken, `documents` (S), `price`,
    `objective`, the `terms`' raw values and their `scales`, all of the corpus, as expected before
    any document is finally in or out; and whether the objective has `settled`: it rose over the
    last two rounds by at most `selection.tolerance` of its rise since before the first.

    Raises:
        RunError: a shard has not done the round.
    """
    proposed, tokens = _sum(run, f"round-{number}")
    corpus = _corpus(run, number - 1, torch.device("cpu"))
    num_selected = _num_selected(run, proposed, tokens)
    share, moments = exchange.agree(corpus.terms, corpus.moments, proposed, num_selected)
    sample = _sample(run, _row(run, "total-0", SAMPLED), compute)
    columns = _columns(moments, tokens)
    _write_total(run, number, corpus.terms, moments, sample, corpus.totals, share, columns)


def logits_of_rounds(
    run: Run, shard: int, documents: ShardDocuments, compute: Compute
) -> tuple[np.ndarray, dict[str, list[float]], dict[str, Any]]:
    """A shard's logits after the last round, the corpus's curve (a point per round), and figures.

    Logits are as `datamask.learning.published` says, at the corpus's moments and less its price.
    A shard has as many documents above it as it expects to keep, those of the highest inclusion.
    The curve's `seconds` are 0: a round's duration is no property of a shard.

    Raises:
        RunError: the last round is not there yet.
    """
    rounds = run.last_round
    standing, _ = _standing(run, shard, rounds + 1)

    def publish(compute: Compute) -> np.ndarray:
        data = _data(documents, compute)
        corpus = _corpus(run, rounds, data.device)
        terms = [term for term in corpus.terms if term.weight != 0]
        inclusion = torch.sigmoid(standing.to(torch.float64))
        mask = top_mask(inclusion, round(float(inclusion.sum()))).to(data.device)
        values = published.gains(data, terms, mask, corpus.moments) - corpus.price
        values *= published.unit(
            float(corpus.moments.count),
            float(corpus.totals.count),
            run.settings.selection.scale_terms,
        )
        # Where the gain does not depend on the others, it says all.
        linear = highest_order(terms) < 1
        return published.on_side(values, values > 0 if linear else mask.cpu().numpy())

    totals = [run.receipt(f"total-{number}").figures for number in range(rounds + 1)]
    curve: dict[str, list[float]] = {
        "step": list(range(rounds + 1)),
        "seconds": [0.0] * (rounds + 1),
        "objective": [figures["objective"] for figures in totals],
    }
    curve |= {name: [figures["terms"][name] for figures in totals] for name in totals[0]["terms"]}
    stopped_by = "tolerance" if totals[-1]["settled"] else "rounds"
    how = {"estimator": "expected", "steps": rounds, "stopped_by": stopped_by}
    return within_memory(shard, compute, publish), curve, how


def _order(run: Run) -> int:
    return highest_order(build_terms(run.settings.selection))


def _data(documents: ShardDocuments, compute: Compute) -> ShardData:
    return shard_data(documents.features, documents.quality, documents.scores, compute)


def _tokens(run: Run, shard: int) -> np.ndarray:
    """Tokens of a shard's documents, float64; zeros where the budget is not in tokens."""
    if run.settings.selection.tokens is None:
        return np.zeros(run.receipt("quality", shard).figures["kept"])
    return read_tokens(run, shard).astype(np.float64)


def _num_selected(run: Run, moments: Moments, tokens: float) -> float:
    """S: as set, or as many documents of the present kind as have the tokens of the budget."""
    selection = run.settings.selection
    kept = run.receipt("quality", 0).figures["kept_total"]
    if selection.tokens is None:
        return float(budget.total_budget(selection, run.num_documents))
    per_document = tokens / max(float(moments.count), 1e-9)
    return min(max(selection.tokens / max(per_document, 1e-9), 1.0), float(kept))


def _columns(moments: Moments, tokens: float) -> dict[str, list[Any]]:
    """Moments as columns of one row; of the symmetric matrix, the upper triangle."""
    second = moments.second_DD.cpu().numpy()
    triangle = second[np.triu_indices(len(second))]
    return {
        "count": [float(moments.count)],
        "quality": [float(moments.quality)],
        "tokens": [tokens],
        "scores": [[float(value) for value in moments.scores.values()]],
        "first": [moments.first_D.cpu().numpy()],
        "second": [triangle],
    }


def _moments(run: Run, stage: str, unit: int) -> tuple[Moments, float]:
    """Moments as they were written, on the CPU, and the tokens beside them.

    Raises:
        RunError: they are missing or stale.
    """
    run.receipt(stage, unit)
    single = read_columns(run.path(stage, unit), ["count", "quality", "tokens"]).to_pylist()[0]
    lists = _row(run, stage, ("scores", "first", "second"), unit)
    triangle = lists["second"]
    width = round(((8 * len(triangle) + 1) ** 0.5 - 1) / 2)
    second = np.zeros((width, width))
    second[np.triu_indices(width)] = triangle
    second = second + np.triu(second, 1).T
    names = [score.name for score in run.settings.scores]
    scores = {
        n: torch.tensor(v, dtype=torch.float64) for n, v in zip(names, lists["scores"], strict=True)
    }
    moments = Moments(
        torch.tensor(single["count"], dtype=torch.float64),
        torch.tensor(single["quality"], dtype=torch.float64),
        scores,
        torch.from_numpy(lists["first"].copy()),
        torch.from_numpy(second),
    )
    return moments, float(single["tokens"])


def _sum(run: Run, stage: str) -> tuple[Moments, float]:
    """Moments and tokens of all shards, added in their order."""
    total, tokens = _moments(run, stage, 0)
    for shard in range(1, run.num_shards):
        one, more = _moments(run, stage, shard)
        tokens += more
        total = Moments(
            total.count + one.count,
            total.quality + one.quality,
            {name: total.scores[name] + one.scores[name] for name in total.scores},
            total.first_D + one.first_D,
            total.second_DD + one.second_DD,
        )
    return total, tokens


def _drawn(run: Run) -> dict[str, list[Any]]:
    """The parts of the sample from all shards, as columns of one row."""
    parts = [_row(run, "survey", SAMPLED, shard) for shard in range(run.num_shards)]
    names = [score.name for score in run.settings.scores]
    # Scores are by name, then by document.
    scores = [part["sample_scores"].reshape(len(names), -1) for part in parts]
    return {
        "sample_features": [np.concatenate([part["sample_features"] for part in parts])],
        "sample_quality": [np.concatenate([part["sample_quality"] for part in parts])],
        "sample_scores": [np.concatenate(scores, axis=1).ravel()],
    }


def _sample(run: Run, columns: Mapping[str, Any], compute: Compute) -> ShardData:
    """The sample of the corpus as one shard, on the CPU."""
    features, quality, scores = (np.asarray(columns[name]).reshape(-1) for name in SAMPLED)
    names = [score.name for score in run.settings.scores]
    return shard_data(
        features.reshape(-1, run.settings.embedding.dimension).copy(),
        quality,
        dict(zip(names, scores.reshape(len(names), -1), strict=True)),
        compute.model_copy(update={"device": "cpu", "matmul": "float32"}),
    )


def _row(run: Run, stage: str, names: tuple[str, ...], unit: int = 0) -> dict[str, np.ndarray]:
    """Columns of lists of a file of one row."""
    table = read_columns(run.path(stage, unit), list(names))
    return {name: table[name].chunk(0).values.to_numpy() for name in names}


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
    raw = {
        term.objective.name: float(joint_value([replace(term, weight=1.0, scale=1.0)], moments))
        * (1 if term.objective.maximise else -1)
        for term in terms
        if isinstance(term.objective, MomentObjective)
    }
    documents = float(moments.count)
    objective = float(joint_value(active, moments))
    figures = {
        "share": share,
        "documents": documents,
        "price": exchange.price_of(active, moments, sample, documents / float(totals.count)),
        "objective": objective,
        "terms": raw,
        "scales": {term.objective.name: term.scale for term in terms},
    }
    figures["settled"] = _has_settled(run, number, objective)
    if share is not None:
        logger.info(
            "round %d: objective %.4f, %.0f %% of it taken",
            number,
            figures["objective"],
            100 * share,
        )
    selection = run.settings.selection
    if number == selection.rounds and not figures["settled"] and selection.tolerance:
        logger.warning(
            "round %d: the last that selection.rounds allows, and the objective still rises; raise "
            "it to go on from here",
            number,
        )
    schema = schemas.MOMENTS if number else schemas.SURVEY
    _write(run, f"total-{number}", 0, schema, columns, figures)


def _has_settled(run: Run, number: int, objective: float) -> bool:
    """Whether the last rounds raised the objective by little of what all of them did."""
    if number < ROUNDS_TO_STOP:
        return False
    start, before = (
        run.receipt(f"total-{one}").figures["objective"] for one in (0, number - ROUNDS_TO_STOP)
    )
    tolerance = run.settings.selection.tolerance
    return bool(tolerance and objective - before <= tolerance * (objective - start))


def _corpus(run: Run, number: int, device: torch.device) -> exchange.Corpus:
    """What shards are told before the round after this one."""
    figures = run.receipt(f"total-{number}").figures
    terms = tuple(
        replace(term, scale=figures["scales"][term.objective.name])
        for term in build_terms(run.settings.selection)
    )
    totals, _ = _moments(run, "total-0", 0)
    if number:
        moments, _ = _moments(run, f"total-{number}", 0)
    else:
        moments = exchange.agree(terms, totals, totals, figures["documents"])[1]
    return exchange.Corpus(
        terms, _on(totals, device), _on(moments, device), figures["price"], figures["share"]
    )


def _on(moments: Moments, device: torch.device) -> Moments:
    return Moments(
        moments.count.to(device),
        moments.quality.to(device),
        {name: value.to(device) for name, value in moments.scores.items()},
        moments.first_D.to(device),
        moments.second_DD.to(device),
    )


def _standing(run: Run, shard: int, number: int) -> tuple[torch.Tensor, Pace | None]:
    """Where a shard stands before a round: its last proposal, as far as it was taken."""
    told = run.receipt(f"total-{number - 1}").figures
    if number == 1:
        left = budget.Survivors.of(run.receipt("quality", shard).figures)
        part = told["documents"] / left.kept_total
        even = torch.logit(torch.tensor(min(max(part, 1e-6), 1 - 1e-6), dtype=torch.float64))
        return torch.full((left.kept,), float(even)), None
    stage = f"round-{number - 1}"
    run.receipt(stage, shard)
    row = _row(run, stage, ("before", "proposed", "pace"), shard)
    before, proposed, pace = (torch.from_numpy(values.copy()) for values in row.values())
    return exchange.taken(before, proposed, told["share"]), Pace(*pace.tolist())


def _write(
    run: Run,
    stage: str,
    unit: int,
    schema: pa.Schema,
    columns: dict[str, list[Any]],
    figures: dict[str, Any],
) -> Receipt:
    table = pa.table(
        {field.name: pa.array(columns[field.name], field.type) for field in schema}, schema=schema
    )

    def made(rows: int) -> Receipt:
        return run.make_receipt(stage, unit, rows, figures)

    receipt = write_parquet(run.path(stage, unit), schema, [table], made, root=run.root)
    assert receipt is not None
    return receipt
