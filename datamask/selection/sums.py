"""The files in which shards exchange sums, and what they say about the whole corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from datamask.config.compute import Compute
from datamask.learning.data import ShardData, highest_order, map_moments
from datamask.learning.learner import shard_data
from datamask.objectives.protocol import MomentObjective, Moments
from datamask.objectives.weighted import WeightedTerm, build_terms
from datamask.runs import budget
from datamask.runs.files import read_columns
from datamask.runs.output import write_output
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run, shard_seed
from datamask.selection.documents import ShardDocuments, read_tokens
from datamask.selection.indicators import score_names

SAMPLE = 16_384
"""Documents from which scales, the dual price and a model's threshold are estimated
(docs/log.md#rounds)."""

SAMPLED = ("sample_features", "sample_quality", "sample_scores")


def term_values(terms: Sequence[WeightedTerm], moments: Moments) -> dict[str, float]:
    """The raw value of each moment objective."""
    return {
        term.objective.name: float(term.objective.of_moments(moments))
        for term in terms
        if isinstance(term.objective, MomentObjective)
    }


def scaled_terms(run: Run) -> tuple[WeightedTerm, ...]:
    """The terms of the objective with the scales of the corpus."""
    scales = run.receipt("round_total", 0).metrics["scales"]
    return tuple(
        replace(term, scale=scales[term.objective.name])
        for term in build_terms(run.settings.selection)
    )


def moment_order(run: Run) -> int:
    """The highest order of moments that the objective needs: 0, 1 or 2."""
    return highest_order(build_terms(run.settings.selection))


def learner_data(documents: ShardDocuments, compute: Compute) -> ShardData:
    """The documents of a shard on the learner's device."""
    return shard_data(documents.features, documents.quality, documents.scores, compute)


def tokens_of(run: Run, shard: int) -> np.ndarray:
    """Tokens of the documents of a shard, float64; zeros unless the budget is in tokens."""
    if run.settings.selection.tokens is None:
        return np.zeros(run.receipt("quality", shard).metrics["kept"])
    return read_tokens(run, shard).astype(np.float64)


def moment_columns(moments: Moments, tokens: float) -> dict[str, list[Any]]:
    """Moments as columns of one row; the symmetric matrix as its upper triangle."""
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


def read_moments(run: Run, stage: str, unit: int, row: int = 0) -> tuple[Moments, float]:
    """Moments as written, on the CPU, and the tokens of the same documents.

    Raises:
        RunError: the file is missing or stale.
    """
    run.receipt(stage, unit)
    table = read_columns(run.path(stage, unit), ["count", "quality", "tokens"])
    single = table.to_pylist()[row]
    lists = read_lists(run, stage, ("scores", "first", "second"), unit, row)
    triangle = lists["second"]
    width = round(((8 * len(triangle) + 1) ** 0.5 - 1) / 2)
    second = np.zeros((width, width))
    second[np.triu_indices(width)] = triangle
    second = second + np.triu(second, 1).T
    names = score_names(run)
    scores = {
        n: torch.tensor(v, dtype=torch.float64) for n, v in zip(names, lists["scores"], strict=True)
    }
    count, quality = (torch.tensor(single[n], dtype=torch.float64) for n in ("count", "quality"))
    first, second_DD = torch.from_numpy(lists["first"].copy()), torch.from_numpy(second)
    return Moments(count, quality, scores, first, second_DD), float(single["tokens"])


def sum_moments(run: Run, stage: str, units: range, row: int = 0) -> tuple[Moments, float]:
    """Moments and tokens of some units of a stage, one per shard, added in the order of shards."""
    total, tokens = read_moments(run, stage, units[0], row)
    for unit in units[1:]:
        one, more = read_moments(run, stage, unit, row)
        total, tokens = map_moments(torch.add, total, one), tokens + more
    return total, tokens


def sample_places(run: Run, shard: int) -> slice:
    """The places of a shard's documents in the sample of the corpus."""
    left = budget.Survivors.of(run.receipt("quality", shard).metrics)
    whole = min(SAMPLE, left.kept_total)
    start = budget.shard_budget(whole, 0, left.kept_before, left.kept_total)
    size = budget.shard_budget(whole, left.kept_before, left.kept, left.kept_total)
    return slice(start, start + size)


def sampled_rows(run: Run, shard: int) -> np.ndarray:
    """A shard's part of the sample of the corpus: places among its documents, ascending."""
    left = budget.Survivors.of(run.receipt("quality", shard).metrics)
    places = sample_places(run, shard)
    generator = np.random.Generator(np.random.PCG64(shard_seed(run.settings.seed, shard)))
    return np.sort(generator.permutation(left.kept)[: places.stop - places.start])


def sample_columns(documents: ShardDocuments, rows: np.ndarray) -> dict[str, list[Any]]:
    """Some documents of a shard as columns of one row; scores by name, then by document."""
    scores = [documents.scores[name][rows] for name in documents.scores]
    return {
        "sample_features": [np.asarray(documents.features[rows], np.float16).ravel()],
        "sample_quality": [documents.quality[rows]],
        "sample_scores": [np.concatenate([*scores, np.zeros(0, np.float32)])],
    }


def drawn_sample(run: Run, stage: str = "corpus_statistics") -> dict[str, list[Any]]:
    """The sample of the corpus, joined from all shards, as columns of one row."""
    parts = [read_lists(run, stage, SAMPLED, shard) for shard in range(run.num_shards)]
    names = score_names(run)
    scores = [part["sample_scores"].reshape(len(names), -1) for part in parts]
    return {
        "sample_features": [np.concatenate([part["sample_features"] for part in parts])],
        "sample_quality": [np.concatenate([part["sample_quality"] for part in parts])],
        "sample_scores": [np.concatenate(scores, axis=1).ravel()],
    }


def corpus_sample(run: Run, columns: Mapping[str, Any], compute: Compute) -> ShardData:
    """The sample of the corpus as one shard, on the CPU."""
    features, quality, scores = (np.asarray(columns[name]).reshape(-1) for name in SAMPLED)
    names = score_names(run)
    return shard_data(
        features.reshape(-1, run.settings.embedding.dimension).copy(),
        quality,
        dict(zip(names, scores.reshape(len(names), -1), strict=True)),
        compute.model_copy(update={"device": "cpu", "matmul": "float32"}),
    )


def read_lists(
    run: Run, stage: str, names: tuple[str, ...], unit: int = 0, row: int = 0
) -> dict[str, np.ndarray]:
    """The lists in some columns of one row of a file, as arrays."""
    table = read_columns(run.path(stage, unit), list(names)).slice(row, 1)
    return {name: table[name].chunk(0).flatten().to_numpy(zero_copy_only=False) for name in names}


def write_sums(
    run: Run,
    stage: str,
    unit: int,
    schema: pa.Schema,
    columns: dict[str, list[Any]],
    metrics: dict[str, Any],
) -> Receipt:
    """Write a file of sums, with a receipt."""
    arrays = {field.name: pa.array(columns[field.name], field.type) for field in schema}
    return write_output(run, stage, unit, schema, [pa.table(arrays, schema=schema)], metrics)
