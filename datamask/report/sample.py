"""The report's sample of documents, with a map and nearest neighbours.

Counts and means of the report cover every document. What needs embeddings covers a seeded sample
from at most 32 shards, because comparing all pairs of 10⁸ documents is infeasible. For its nearest
neighbour, a document is compared with *all* documents of its shard, so it is exact within the
shard; the embeddings of one shard are in memory. The density is a coordinate of charts, for which a
seeded draw of the shard's documents is enough. A run that keeps no embeddings embeds the sampled
documents again and compares them with each other only.

`SAMPLE` and `NEIGHBOUR` are the columns of the two files in `RUN/report/`. The receipt of the
sample has `mean_cosine`, the mean over all pairs.
"""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from datamask.analysis.composition import query
from datamask.config.compute import Compute
from datamask.config.outputs import SAMPLED_SHARDS
from datamask.learning.data import Problem
from datamask.learning.learner import fastest_products, learn, shard_data
from datamask.learning.resuming import Curve
from datamask.objectives.weighted import WeightedObjective, build_terms
from datamask.report.redundancy import SETS, neighbours_path, sample_path
from datamask.runs.files import read_columns, write_parquet
from datamask.runs.run import Run, shard_seed
from datamask.selection.documents import read_documents
from datamask.source.texts import beginnings

logger = logging.getLogger(__name__)

NEIGHBOURS, COMPARED_FOR_DENSITY = 10, 25_000
"""The density of a document: of so many nearest, among so many (docs/log.md#report)."""

QUERIES, BLOCK, SPARE = 8192, 64, 13
"""Documents whose nearest are sought together, others per document kept of a block, and documents
kept beyond three times those needed (docs/log.md#report)."""

ROUNDING = 2**-8
"""Most by which bfloat16 changes a number, as a share of it (docs/log.md#report)."""

PRINCIPAL_COMPONENTS, PERPLEXITY, ITERATIONS, ANGLE = 50, 20, 400, 1.0
"""Of t-SNE (docs/log.md#report)."""

MOST_STEPS = 200
"""Of the learner of the most diverse subset (docs/log.md#report)."""

ASKED = 5
"""Of so many sampled documents, one of each selection is asked for its nearest neighbour."""

SAMPLE = pa.schema(
    [
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("x", pa.float32()),  # on the map; null if not on it
        pa.field("y", pa.float32()),
        # Mean cosine to the ten nearest of at most 25,000 documents of the shard.
        pa.field("density", pa.float32(), nullable=False),
        # In the most diverse subset of the sample: the same metric, lambda 0, the run's ratio.
        pa.field("diverse", pa.bool_(), nullable=False),
        pa.field("beginning", pa.string()),
    ]
)
NEIGHBOUR = pa.schema(
    [
        pa.field("set", pa.string(), nullable=False),
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("cosine", pa.float32(), nullable=False),  # to the nearest other of set and shard
    ]
)


@dataclass(frozen=True, slots=True)
class ShardSample:
    """The sample of a shard.

    Args:
        documents: shard, row, id, quality and density of n documents.
        features: float32, n x D.
        neighbours: the shard's part of `neighbours.parquet`.
    """

    documents: pa.Table
    features: np.ndarray
    neighbours: pa.Table


def write_sample(run: Run, compute: Compute) -> None:
    """Draw the sample and write both files.

    Raises:
        RunError: the composition is missing.
        CorruptFileError: an embeddings file does not hold the documents of the composition.
    """
    settings = run.settings.report
    sql = "SELECT shard, candidates FROM shards WHERE candidates > 0 ORDER BY shard"
    shards = [(row["shard"], row["candidates"]) for row in query(run, sql)]
    if len(shards) > SAMPLED_SHARDS:
        generator = np.random.Generator(np.random.PCG64(run.settings.seed))
        drawn = generator.choice(len(shards), SAMPLED_SHARDS, replace=False)
        shards = [shards[place] for place in sorted(drawn)]
    sizes = [candidates for _, candidates in shards]
    counts = _shares(sizes, settings.sample_documents)
    queries = _shares(sizes, settings.sample_documents // ASKED)
    found = [
        _sample_shard(run, shard, count, asked, compute)
        for (shard, _), count, asked in zip(shards, counts, queries, strict=True)
        if count or asked
    ]
    features = np.concatenate([one.features for one in found])
    documents = pa.concat_tables([one.documents for one in found])
    metrics = {"mean_cosine": mean_cosine(features)}
    write_parquet(
        sample_path(run),
        SAMPLE,
        [_sample_table(run, documents, features, compute)],
        lambda rows: run.make_receipt("report", 0, rows, metrics),
        storage=run.storage,
    )
    write_parquet(
        neighbours_path(run),
        NEIGHBOUR,
        [one.neighbours for one in found],
        lambda rows: run.make_receipt("report", 0, rows),
        storage=run.storage,
    )


def _shares(sizes: list[int], total: int) -> list[int]:
    """*total*, or all if there are fewer, divided in proportion to sizes by cumulative rounding."""
    whole = sum(sizes)
    cuts = [min(total, whole) * bound // whole for bound in itertools.accumulate(sizes, initial=0)]
    return [after - before for before, after in itertools.pairwise(cuts)]


def _sample_shard(run: Run, shard: int, count: int, queries: int, compute: Compute) -> ShardSample:
    """Sample *count* documents of a shard, and *queries* of each set for their neighbours."""
    columns = ["shard", "row", "id", "quality", "selected", "top_quality", "dropped"]
    table = read_columns(run.path("documents", shard), columns)
    table = table.filter(pc.field("dropped").is_null()).drop_columns("dropped").combine_chunks()
    size = table.num_rows
    generator = np.random.Generator(np.random.PCG64(shard_seed(run.settings.seed, shard)))
    selected = table["selected"].to_numpy()
    members = {
        "candidates": np.arange(size),
        "selected": np.flatnonzero(selected),
        "top_quality": np.flatnonzero(table["top_quality"].to_numpy()),
        "random": np.sort(generator.permutation(size)[: int(selected.sum())]),
    }
    drawn = generator.permutation(size)
    sampled, compared = np.sort(drawn[:count]), np.sort(drawn[:COMPARED_FOR_DENSITY])
    asked = {name: np.sort(generator.permutation(rows)[:queries]) for name, rows in members.items()}
    places, rows = np.arange(size), None
    if not run.settings.embedding.keep:
        # No other documents are embedded again, so they are compared with each other only.
        places = rows = np.unique(np.concatenate([sampled, *asked.values()]))
        compared, members = sampled, asked
    features = read_documents(run, shard, compute, rows=rows).features
    device = shard_data(np.zeros((1, 1)), np.zeros(1), {}, compute).device

    def nearest(rows: np.ndarray, others: np.ndarray, number: int) -> pa.Array:
        rows, others = np.searchsorted(places, rows), np.searchsorted(places, others)
        parts = np.array_split(rows, -(-len(rows) // QUERIES) or 1)
        found = [mean_of_nearest(features, part, others, number, device) for part in parts]
        return pa.array(np.concatenate(found))

    cosines = {name: nearest(asked[name], members[name], 1) for name in SETS}
    density = nearest(sampled, compared, NEIGHBOURS)
    logger.info("report: shard %05d: neighbours of %d of %d documents", shard, count, size)
    keys = table.select(["shard", "row"])
    neighbours = [
        keys.take(asked[name])
        .add_column(0, "set", pa.array([name] * len(asked[name]), pa.string()))
        .append_column("cosine", cosines[name])
        .cast(NEIGHBOUR)
        for name in SETS
    ]
    documents = table.select(["shard", "row", "id", "quality"]).take(sampled)
    return ShardSample(
        documents.append_column("density", density),
        features[np.searchsorted(places, sampled)].astype(np.float32),
        pa.concat_tables(neighbours),
    )


def mean_of_nearest(
    features: np.ndarray, rows: np.ndarray, others: np.ndarray, number: int, device: torch.device
) -> np.ndarray:
    """The mean of a document's largest cosines to other documents; 0 if there are no others.

    On a CPU that multiplies bfloat16 in hardware, these faster products find more documents than
    needed. If the exact cosines of these exceed what rounding may hide, no other document is
    nearer; the few documents for which one may be are searched again in float32.

    Args:
        features: float16, N x D, unit rows.
        rows: of the Q documents.
        others: of the documents that they are compared with, ascending.
        number: of cosines that the mean is over; all if there are fewer others.
        device: multiplies.

    Returns:
        float64, shape Q.
    """
    mean, left = np.zeros(len(rows)), np.arange(len(rows))
    has_fast_bfloat16 = device.type == "cpu" and fastest_products(device) == "bfloat16"
    for product in (torch.bfloat16, torch.float32)[not has_fast_bfloat16 :]:
        rough_QK, places_QK = _nearest(features, rows[left], others, number, device, product)
        # Products depend on the number of threads; these sums do not.
        queries = features[rows[left]].astype(np.float64)
        nearest = (features[one].astype(np.float64) for one in places_QK.T)
        exact_QK = np.stack([np.einsum("qd,qd->q", queries, one) for one in nearest], axis=1)
        exact_QK = np.where(np.isfinite(rough_QK), exact_QK, -np.inf)
        best = np.sort(exact_QK, axis=1)[:, -number:]
        count = np.maximum(np.isfinite(best).sum(1), 1)
        mean[left] = np.where(np.isfinite(best), best, 0.0).sum(1) / count
        last = rough_QK[:, -1]  # no other document has a higher one
        left = left[last + ROUNDING * (2 + np.abs(np.maximum(last, -1))) > best[:, 0]]
    return mean


def _nearest(
    features: np.ndarray,
    rows: np.ndarray,
    others: np.ndarray,
    number: int,
    device: torch.device,
    product: torch.dtype,
) -> tuple[np.ndarray, np.ndarray]:
    """The K highest cosines to others, as *product* finds them, and their rows; both Q x K.

    K is `SPARE` + 3 *number*. Places without a document have minus infinity.
    """

    def vectors(rows: np.ndarray) -> Tensor:
        return torch.from_numpy(features[rows]).to(device).to(product)

    queries_QD, kept = vectors(rows), SPARE + 3 * number
    best_QK = queries_QD.new_full((len(rows), kept), -torch.inf)
    best_rows_QK = np.zeros((len(rows), kept), np.int64)
    width = BLOCK * kept  # `topk` of a larger share is slower
    for start in range(0, len(others), width):
        block = others[start : start + width]
        cosines_QB = _without_own(queries_QD @ vectors(block).T, rows, block)
        found = (cosines_QB.amax(1) > best_QK[:, -1]).nonzero()[:, 0]
        highest, column = cosines_QB[found].topk(min(kept, len(block)), dim=1)
        left = found.cpu().numpy()
        both_rows = np.hstack([best_rows_QK[left], block[column.cpu().numpy()]])
        best_QK[found], place = torch.cat([best_QK[found], highest], dim=1).topk(kept, dim=1)
        best_rows_QK[left] = np.take_along_axis(both_rows, place.cpu().numpy(), axis=1)
    return best_QK.float().cpu().numpy(), best_rows_QK


def _without_own(cosines_QB: Tensor, rows: np.ndarray, others: np.ndarray) -> Tensor:
    """Set the cosine of each document to itself to minus infinity."""
    column = np.searchsorted(others, rows)
    own = np.flatnonzero(others[np.minimum(column, len(others) - 1)] == rows)
    at = tuple(torch.from_numpy(index).to(cosines_QB.device) for index in (own, column[own]))
    cosines_QB[at] = -torch.inf
    return cosines_QB


def mean_cosine(features: np.ndarray) -> float:
    """Mean over all pairs of different documents; 0 if there is no pair.

    Args:
        features: n x D, unit rows.
    """
    total = features.sum(0, dtype=np.float64)
    own = float(np.square(features, dtype=np.float64).sum())
    return (float(total @ total) - own) / max(len(features) * (len(features) - 1), 1)


def _sample_table(
    run: Run, documents: pa.Table, features: np.ndarray, compute: Compute
) -> pa.Table:
    """The sample with a map of some of its documents, and the beginnings of their texts."""
    size = documents.num_rows
    generator = np.random.Generator(np.random.PCG64(run.settings.seed))
    mapped = np.sort(generator.permutation(size)[: run.settings.report.map_documents])
    places = np.zeros((size, 2), dtype=np.float32)
    places[mapped] = embedding_map(features[mapped], run.settings.seed)
    absent = ~np.isin(np.arange(size), mapped)
    keys = list(zip(*(documents[name].to_pylist() for name in ("shard", "row")), strict=True))
    texts = beginnings(run, [keys[place] for place in mapped])
    columns = {name: documents[name] for name in ("shard", "row", "id", "density")} | {
        "x": pa.array(places[:, 0], mask=absent),
        "y": pa.array(places[:, 1], mask=absent),
        "diverse": pa.array(_diverse(run, documents["quality"].to_numpy(), features, compute)),
        "beginning": pa.array([texts.get(key) for key in keys], pa.string()),
    }
    return pa.table(columns).select(SAMPLE.names).cast(SAMPLE)


def _diverse(run: Run, quality: np.ndarray, features: np.ndarray, compute: Compute) -> np.ndarray:
    """Which documents are in the most diverse subset of the sample, at the run's ratio."""
    from threadpoolctl import threadpool_limits

    kept, left = query(run, "SELECT sum(selected), sum(candidates) FROM shards")[0].values()
    selection = run.settings.selection.model_copy(
        update={
            "method": "mask",
            "quality_weight": 0.0,
            "more_terms": (),
            "steps": min(run.settings.selection.steps, MOST_STEPS),
        }
    )
    count = len(features) * int(kept) // int(left)
    seed = run.settings.seed
    # One term needs no scale, which takes longer to measure than some masks to learn.
    objective = WeightedObjective(build_terms(selection))
    data, order = shard_data(features, quality, {}, compute), np.arange(len(features))
    problem = Problem(data, quality, order, selection, count, seed, objective, random={})
    with threadpool_limits(1):  # as for t-SNE
        return problem.top(learn(problem, Curve(objective, selection.steps)).logits)


def embedding_map(features: np.ndarray, seed: int) -> np.ndarray:
    """t-SNE of some documents, deterministic on one machine.

    Args:
        features: float32, n x D, unit rows.
        seed: of t-SNE.

    Returns:
        float32, n x 2, in units of the map's standard deviation; three decimals.
    """
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    if len(features) < 4:
        return np.zeros((len(features), 2), dtype=np.float32)
    # Sums over threads differ in their last digits, and t-SNE amplifies the difference.
    with threadpool_limits(1):
        wide = features.astype(np.float64) - features.mean(0, dtype=np.float64)
        values, axes = np.linalg.eigh(wide.T @ wide)
        axes = axes[:, np.argsort(-values)][:, :PRINCIPAL_COMPONENTS]
        # Fix the sign of each axis, which the eigensolver does not determine.
        axes = axes * np.sign(axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])])
        reduced = (wide @ axes).astype(np.float32)
        deviation = float(reduced[:, 0].std())
        if not deviation:
            return np.zeros((len(features), 2), dtype=np.float32)
        start = reduced[:, :2] / deviation * 1e-4
        perplexity = min(PERPLEXITY, (len(features) - 1) / 3)
        made = TSNE(
            2,
            perplexity=perplexity,
            init=start,
            max_iter=ITERATIONS,
            angle=ANGLE,
            random_state=seed % 2**32,
        )
        places = made.fit_transform(reduced)
    result: np.ndarray = np.round(places / (places.std() or 1.0), 3).astype(np.float32)
    return result
