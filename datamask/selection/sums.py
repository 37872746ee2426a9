"""Read and write the files with sums that shards exchange about the whole corpus."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from datamask.learning import exchange
from datamask.learning.data import ShardData, highest_order, moments_of
from datamask.objectives.level import Level
from datamask.objectives.protocol import MomentObjective, Moments
from datamask.objectives.weighted import WeightedTerm
from datamask.runs import schemas
from datamask.runs.files import read_columns
from datamask.runs.output import write_output
from datamask.runs.run import Run
from datamask.selection.documents import ShardDocuments, level_from, read_tokens
from datamask.selection.terms import score_names, terms_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """The corpus after a round, before any document is finally in or out; 0 is before the first.

    Args:
        documents: S.
        expected: documents that the logits expect (the sum of p), as a sample predicts.
        excess: what the next round subtracts from logits so that these expect S.
        share: fraction of the round that was applied; None in total 0.
        drawn: True if masks are drawn should the round be the last (`policy.expected_mask`).
        dual_price: gradient of the last document that would be selected.
        objective: of the corpus.
        terms: their raw values.
        scales: of the terms, for quality as it is learned.
        settled: True if the objective has stopped rising (`totals.ROUNDS_TO_STOP`).
        threshold: of the judge; in total 0.
        sample: the sample that the judge was learned from (`sampling.learn_judge`); in total 0.
    """

    documents: float
    expected: float
    excess: float = 0.0
    share: float | None = None
    drawn: bool = False
    dual_price: float
    objective: float
    terms: dict[str, float]
    scales: dict[str, float]
    settled: bool
    threshold: float | None = None
    sample: dict[str, Any] | None = None

    @staticmethod
    def read(run: Run, number: int) -> Total:
        """Read the receipt of a round's total."""
        return Total(**run.receipt("round_total", number).metrics)


def term_values(terms: Sequence[WeightedTerm], moments: Moments) -> dict[str, float]:
    """Return the raw value of each moment objective, for quality as it is learned."""
    return {
        term.objective.name: float(term.objective.of_moments(moments))
        for term in terms
        if isinstance(term.objective, MomentObjective)
    }


def level_of_quality(run: Run) -> Level:
    """Return the level of quality wherever shards exchange sums."""
    return level_from(run.receipt("quality", 0).metrics)


@dataclass(frozen=True, slots=True)
class CorpusState:
    """The state of the corpus after a round; 0 is before the first.

    Args:
        number: of the round.
        first: total 0.
        total: of the round.
        corpus: on the CPU.
    """

    number: int
    first: Total
    total: Total
    corpus: exchange.Corpus

    @staticmethod
    def read(run: Run, number: int) -> CorpusState:
        """Read the totals of the round, and total 0."""
        first, total = Total.read(run, 0), Total.read(run, number)
        totals, slope, *_ = read_moments(run, "round_total", [0])
        moments, *_ = read_moments(run, "round_total", [number])
        scales, judge = first.scales, exchange.Judge(slope, first.threshold or 0.0)
        terms = tuple(replace(term, scale=scales[term.objective.name]) for term in terms_of(run))
        moments = moments.scaled(total.documents)
        corpus = exchange.Corpus(terms, totals, moments, judge, total.excess)
        return CorpusState(number, first, total, corpus)

    def share_selected(self, total: Total) -> float:
        """Return the fraction of all documents that a total selects; in (0, 1)."""
        fraction = total.documents / float(self.corpus.totals.count)
        return min(max(fraction, 1e-6), 1 - 1e-6)

    def first_logits(self, documents: int) -> torch.Tensor:
        """Return logits before the first round, float32: the same for every document."""
        share = torch.tensor(self.share_selected(self.first), dtype=torch.float64)
        return torch.full((documents,), float(torch.logit(share)))


def weighed_moments(
    run: Run, data: ShardData, weights: np.ndarray, *, exact: bool = True
) -> Moments:
    """Sum moments of documents by weight (shape N), up to the order that the objective needs."""
    weights_N = torch.from_numpy(weights.astype(np.float32)).to(data.device)
    return moments_of(data, weights_N, highest_order(terms_of(run)), exact=exact)


def all_moments(run: Run, data: ShardData) -> Moments:
    """Sum moments of all documents, in the precision that steers learning."""
    return weighed_moments(run, data, np.ones(data.num_documents), exact=False)


def weighed_tokens(run: Run, documents: ShardDocuments, weights: np.ndarray | float = 1.0) -> float:
    """Sum tokens of a shard's documents times weights; 0 unless the budget is in tokens."""
    if run.settings.selection.tokens is None:
        return 0.0
    return float((read_tokens(run, documents).astype(np.float64) * weights).sum())


def moment_row(moments: Moments, tokens: float = 0.0) -> dict[str, Any]:
    """Turn moments into a row of a file; a symmetric matrix becomes its upper triangle."""
    second = moments.second_DD.cpu().numpy()
    return {
        "count": float(moments.count),
        "quality": float(moments.quality),
        "tokens": tokens,
        "scores": [float(value) for value in moments.scores.values()],
        "first": moments.first_D.cpu().numpy(),
        "second": second[np.triu_indices(len(second))],
    }


def moments_from(
    names: Sequence[str], sums: np.ndarray, first: np.ndarray, triangle: np.ndarray
) -> Moments:
    """Make moments on the CPU from sums (count, quality, scores by name) as in `moment_row`."""
    width = (math.isqrt(8 * len(triangle) + 1) - 1) // 2
    second = np.zeros((width, width))
    second[np.triu_indices(width)] = triangle
    second += np.triu(second, 1).T
    count, quality, *scores = torch.tensor(sums)
    named = dict(zip(names, scores, strict=True))
    return Moments(count, quality, named, torch.tensor(first), torch.from_numpy(second))


def moments_of_row(run: Run, row: Mapping[str, np.ndarray]) -> Moments:
    """Make moments on the CPU from a row of a file (`read_rows`)."""
    sums = np.concatenate([row[name] for name in ("count", "quality", "scores")])
    return moments_from(score_names(run), sums, row["first"], row["second"])


def read_moments(run: Run, stage: str, units: Iterable[int]) -> list[Moments]:
    """Read moments on the CPU: for each row of the files, added in the order of units."""
    totals: list[dict[str, np.ndarray]] = []
    for unit in units:
        run.receipt(stage, unit)
        added = read_rows(run, stage, tuple(schemas.MOMENTS.names), unit)
        if totals:
            added = [
                {name: total[name] + values for name, values in row.items()}
                for total, row in zip(totals, added, strict=True)
            ]
        totals = added
    return [moments_of_row(run, total) for total in totals]


def sum_tokens(run: Run, stage: str, units: Iterable[int]) -> float:
    """Sum the tokens in the first rows of units' files."""
    return float(sum(read_lists(run, stage, ("tokens",), unit)["tokens"][0] for unit in units))


def read_lists(
    run: Run, stage: str, names: tuple[str, ...], unit: int = 0
) -> dict[str, np.ndarray]:
    """Read some columns of the first row of a file, as `read_rows` does."""
    return read_rows(run, stage, names, unit)[0]


def read_rows(
    run: Run, stage: str, names: tuple[str, ...], unit: int
) -> list[dict[str, np.ndarray]]:
    """Read some columns of each row of a file, as arrays; a number becomes an array of length 1.

    All shards read the same totals, so a process keeps the last of these.
    """
    read = _known_rows if stage == "round_total" else _rows
    return read(run.path(stage, unit), run.fingerprint(stage, unit), names)


def _rows(path: Path, fingerprint: str, names: tuple[str, ...]) -> list[dict[str, np.ndarray]]:
    # The key contains the fingerprint, because another file may come to the same path.
    table = read_columns(path, list(names))
    columns = {name: table[name].combine_chunks() for name in names}
    return [
        {name: _array(column.slice(row, 1)) for name, column in columns.items()}
        for row in range(table.num_rows)
    ]


_known_rows = functools.lru_cache(maxsize=8)(_rows)


def _array(column: pa.Array) -> np.ndarray:
    values = column.flatten() if pa.types.is_list(column.type) else column
    return np.asarray(values.to_numpy(zero_copy_only=False))


def write_sums(
    run: Run,
    stage: str,
    unit: int,
    schema: pa.Schema,
    rows: Sequence[Mapping[str, Any]],
    metrics: dict[str, Any],
) -> None:
    """Write a file of sums; a list that a row lacks is written empty."""
    columns = [pa.array([row.get(field.name, ()) for row in rows], field.type) for field in schema]
    write_output(run, stage, unit, schema, [pa.table(columns, schema=schema)], metrics)
