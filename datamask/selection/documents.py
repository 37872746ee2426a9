"""Read the documents of a shard as the learner needs them, and compare its mask."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datamask.config.compute import Compute
from datamask.config.selection import NO_GROUP
from datamask.embedding.vectors import read_vectors
from datamask.errors import CorruptFileError, DeviceMemoryError, InputError
from datamask.learning.ranked import compare_quality
from datamask.objectives.formula import indicator_names
from datamask.objectives.level import Level
from datamask.runs import budget
from datamask.runs.files import read_columns
from datamask.runs.run import Run, shard_seed

if TYPE_CHECKING:
    from datamask.learning.data import ShardData

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

LEAST_WORKING_SET = 64 * 2**20
"""Least working set after halving, in bytes (docs/log.md#memory)."""


@dataclass(frozen=True, slots=True)
class ShardDocuments:
    """The documents of a shard that survived pruning, in the source's order; N of each.

    Args:
        shard: its number.
        rows: in the shard.
        ids: strings.
        quality: float64, finite.
        level: of the corpus's quality, on which shards learn (`quality.dropping`).
        left: how many survived, in the shard and in the corpus.
        scores: float32, by name.
        features: float16, N x D, unit rows.
    """

    shard: int
    rows: pa.ChunkedArray
    ids: pa.ChunkedArray
    quality: np.ndarray
    level: Level
    left: budget.Survivors
    scores: dict[str, np.ndarray]
    features: np.ndarray


def with_vectors(
    run: Run, documents: ShardDocuments, rows: np.ndarray | None = None
) -> ShardDocuments:
    """Read the vectors of a shard's documents.

    Args:
        run: the run; without vectors, the documents are returned as they are.
        documents: all documents of the shard.
        rows: which of the documents are wanted, in this order; None: all.
    """
    shard = documents.shard
    if not run.settings.has_vectors:
        return documents
    check_rows(run, "embeddings", shard, len(documents.ids))
    order = None if rows is None else np.sort(rows)
    path, dimension = run.path("embeddings", shard), run.settings.embedding.dimension
    features = read_vectors(path, dimension, order)
    if rows is None:
        return replace(documents, features=features)
    return replace(
        documents,
        rows=documents.rows.take(rows),
        ids=documents.ids.take(rows),
        quality=documents.quality[rows],
        scores={name: score[rows] for name, score in documents.scores.items()},
        features=features[np.searchsorted(np.sort(rows), rows)],
    )


def read_tokens(run: Run, documents: ShardDocuments) -> np.ndarray:
    """Read the tokens of documents; int64, shape N.

    Raises:
        InputError: a document has no number of tokens (`check_tokens`).
    """
    shard, rows = documents.shard, documents.rows
    tokens = run.read_output("scores", shard, ["tokens"])["tokens"].take(rows)
    check_tokens(run, shard, rows, tokens)
    return np.asarray(tokens.to_numpy(), np.int64)


def check_rows(run: Run, stage: str, shard: int, number: int) -> None:
    """Check that a stage wrote as many rows of a shard as documents survive there.

    Raises:
        CorruptFileError: there are more or fewer.
    """
    rows = run.receipt(stage, shard).rows
    if rows != number:
        raise CorruptFileError(
            f"{run.path(stage, shard)}: {rows:,} documents, but {run.path('quality', shard)} has "
            f"{number:,}; delete it and relaunch"
        )


def read_column(run: Run, stage: str, documents: ShardDocuments, name: str) -> pa.ChunkedArray:
    """Read a column of a stage's file, a row for each document. Errors are as in `check_rows`."""
    check_rows(run, stage, documents.shard, len(documents.ids))
    return run.read_output(stage, documents.shard, [name])[name]


def read_groups(run: Run, documents: ShardDocuments, column: str) -> pa.ChunkedArray:
    """Read the group of each document by topic, or by a kind of the source; text, shape N."""
    if column == "topic":
        return read_column(run, "topics", documents, "topic")
    stage = "groups" if column in run.settings.source.groups else "scores"
    groups = run.read_output(stage, documents.shard, [column])[column]
    return pc.fill_null(groups.take(documents.rows), NO_GROUP)


def read_indicators(run: Run, documents: ShardDocuments) -> dict[str, np.ndarray]:
    """Read the indicators of documents: 0 and 1 by name, float32, shape N."""
    names, shard = indicator_names(run.settings.selection), documents.shard
    columns = {name.partition("=")[0] for name in names}
    named = sorted(columns - {"length"})
    groups = {column: read_groups(run, documents, column).to_numpy() for column in named}
    if "length" in columns:
        edges = run.receipt("quality", shard).metrics["length_edges"]
        table = run.read_output("scores", shard, ["characters"]).take(documents.rows)
        bins = np.searchsorted(edges, table["characters"].to_numpy(), side="right")
        groups["length"] = bins.astype(str)
    indicators = {}
    for name in names:
        column, _, group = name.partition("=")
        indicators[name] = (groups[column] == group).astype(np.float32)
    return indicators


def read_ranked(run: Run, stage: str, documents: ShardDocuments, *, in_tokens: bool) -> pa.Table:
    """Read columns logit, quality, id and units (tokens, or 1) of a shard.

    Raises:
        RunError, CorruptFileError, InputError: as in `read_column` and `read_tokens`.
    """
    ids, quality = documents.ids, documents.quality
    logits = read_column(run, stage, documents, "logit")
    units = read_tokens(run, documents) if in_tokens else np.ones(len(ids), np.int64)
    return pa.table({"logit": logits, "quality": quality, "id": ids, "units": units})


def read_candidates(run: Run, documents: ShardDocuments) -> pa.Table:
    """Read logit, quality, id, units, limited groups and shard of a shard's documents.

    Units are tokens, or 1 for a budget of documents.
    """
    selection = run.settings.selection
    ranked = read_ranked(run, "learning", documents, in_tokens=selection.tokens is not None)
    for column in selection.limited:
        if column != "quality":
            ranked = ranked.append_column(column, read_groups(run, documents, column))
    return ranked.append_column("shard", pa.repeat(documents.shard, len(ranked)))


def check_tokens(run: Run, shard: int, rows: pa.Array, tokens: pa.Array) -> None:
    """Check that documents of a shard, given by row, have a number of tokens.

    Raises:
        InputError: the number is missing or negative for one of them.
    """
    is_unknown = pc.fill_null(pc.less(tokens, 0), True)
    if (at := pc.index(is_unknown, True).as_py()) < 0:
        return
    row, path = rows[at].as_py(), run.path("scores", shard)
    name = read_columns(path, ["id"])["id"][row].as_py()
    raise InputError(
        f"document {name} has no number of tokens, and "
        f"selection.{run.settings.selection.needs_tokens} needs them; fix it, or count them with "
        "source.tokenizer (source.columns.token_count naming no column)",
        path=path,
        shard=shard,
        row=row,
        column=run.settings.source.columns.token_count,
    )


def within_memory(shard: int, compute: Compute, work: Callable[[Compute], Result]) -> Result:
    """Call *work*, with half the working set each time that the device runs out of memory.

    Raises:
        DeviceMemoryError: the working set is too small to halve.
    """
    import torch

    while True:
        try:
            return work(compute)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            smaller = compute.working_set_bytes // 2
            if smaller < LEAST_WORKING_SET:
                raise DeviceMemoryError(
                    f"shard {shard:05d}: not enough device memory for the learner; free some, or "
                    "use smaller shards (plan.rows_per_shard)"
                ) from None
            logger.warning(
                "selection: shard %05d: out of device memory; retrying with "
                "compute.working_set_bytes=%d",
                shard,
                smaller,
            )
            compute = compute.model_copy(update={"working_set_bytes": smaller})


def on_device(
    documents: ShardDocuments, compute: Compute, work: Callable[[ShardData], Result]
) -> Result:
    """Call *work* with the documents on the learner's device. Errors are as in `within_memory`."""
    from datamask.learning.learner import shard_data

    def on_data(compute: Compute) -> Result:
        features, quality, scores = documents.features, documents.quality, documents.scores
        return work(shard_data(features, quality, scores, compute, documents.level))

    return within_memory(documents.shard, compute, on_data)


def compare_mask(
    run: Run,
    documents: ShardDocuments,
    selected: np.ndarray,
    compute: Compute,
    ranges: Mapping[str, float],
) -> dict[str, Any]:
    """Compare the mask of a shard with random subsets and top quality (`learner.judge`).

    *ranges* are the scales of its terms while it was learned, by name.
    """
    if not run.settings.has_vectors:
        return compare_quality(documents.quality, selected, run.settings.selection.scale_terms)
    from datamask.learning.learner import judge, scale

    def work(compute: Compute) -> dict[str, Any]:
        problem = scale(
            documents.features,
            documents.quality,
            run.in_force.selection,
            int(selected.sum()),
            shard_seed(run.settings.seed, documents.shard),
            documents.scores,
            compute,
            documents.ids,
            ranges=ranges,
        )
        return judge(problem, selected)

    return within_memory(documents.shard, compute, work)


def read_quality(run: Run, shard: int) -> ShardDocuments:
    """Read a shard's documents with quality, raw scores and indicators; no vectors (D is 0)."""
    documents = read_survivors(run, shard, [score.name for score in run.settings.scores])
    return replace(documents, scores=documents.scores | read_indicators(run, documents))


def read_survivors(run: Run, shard: int, names: Sequence[str] = ()) -> ShardDocuments:
    """Read a shard's documents that survived pruning, with quality and the scores named.

    Raises:
        CorruptFileError: their number differs from the record, or one has no finite quality.
    """
    metrics = run.receipt("quality", shard).metrics
    path = run.path("quality", shard)
    table = read_columns(path, ["row", "id", "quality", "dropped", *names])
    table = table.filter(pc.is_null(table["dropped"]))
    if table.num_rows != metrics["kept"]:
        raise CorruptFileError(
            f"{path}: {table.num_rows:,} documents survive, but its receipt says "
            f"{metrics['kept']}; delete it and relaunch"
        )
    ids, quality = table["id"], table["quality"].to_numpy().astype(np.float64)
    if not np.isfinite(quality).all():
        name = ids.filter(~np.isfinite(quality))[0]
        raise CorruptFileError(f"{path}: id {name} has no finite quality; delete it and relaunch")
    scores = {name: table[name].to_numpy().astype(np.float32) for name in names}
    features, left = np.zeros((len(ids), 0), np.float16), budget.Survivors.of(metrics)
    return ShardDocuments(
        shard, table["row"], ids, quality, level_from(metrics), left, scores, features
    )


def level_from(metrics: dict[str, Any]) -> Level:
    """Return the level of quality that a receipt of `quality` records."""
    return Level(metrics["centre"], metrics["unit"])
