"""Draw the report's sample of documents, with a map, texts, and nearest neighbours.

Counts and means of the report cover every document. Values that need embeddings cover a seeded
sample from at most 32 shards, because comparing all pairs of 10⁸ documents is infeasible. For its
nearest neighbour, a document is compared with *all* documents of its selection and shard, so it is
exact within the shard; the embeddings of one shard are in memory.

`SAMPLE` and `NEIGHBOUR` are the columns of the two files in `RUN/report/`. The receipt of the
sample has `mean_cosine`, the mean over all pairs of random candidates.
"""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datamask.analysis.summary import query, terms_of
from datamask.config.outputs import SAMPLED_DOCUMENTS, SAMPLED_SHARDS
from datamask.embedding.vectors import read_vectors
from datamask.report.redundancy import (
    NEAR_COPY,
    NEAR_DUPLICATE_COSINE,
    neighbours_path,
    sample_path,
)
from datamask.runs.files import write_parquet
from datamask.runs.run import Run, shard_seed
from datamask.selection.documents import check_rows
from datamask.source.texts import beginnings

QUERIES, BLOCK, CHECKED, GROUP = 512, 65_536, 8, 64
"""Number of documents whose nearest are searched together, of others compared at a time, of
nearest ones by float32 that get exact cosines, and of neighbouring cosines of which only the
largest is compared at first (docs/log.md#report)."""

MOST_PAIRS = 1000
"""Number of documents whose nearest document has its text in the sample (docs/log.md#report)."""

EXTREMES, ASKED = 20, 1000
"""Number of documents of each kind that is not random, and of those of each selection whose nearest
document in it is searched (docs/log.md#report)."""

PRINCIPAL_COMPONENTS, PERPLEXITY, ITERATIONS, ANGLE, EXAGGERATION = 50, 20, 250, 1.0, 1.0
"""Of the map by t-SNE (docs/log.md#report)."""

SAMPLE = pa.schema(
    [
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),  # `random`, or the extreme that it shows
        # The gain in logit by quality with a weight of 1, over the shard's mean candidate.
        pa.field("quality_gain", pa.float64()),
        pa.field("x", pa.float32()),  # On the map; null if not on it.
        pa.field("y", pa.float32()),
        # Id of the nearest other document that is selected; for a near-duplicate that was dropped
        # before selection, the document that it repeats.
        pa.field("nearest", pa.string()),
        pa.field("cosine", pa.float32()),
        pa.field("text", pa.string()),  # The text's beginning.
        pa.field("nearest_text", pa.string()),  # Only for the most similar pairs.
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
READ = [
    *("shard", "row", "id", "quality", "logit", "selected", "top_quality"),
    *("dropped", "near_duplicate_of"),
]
"""Columns of a shard's documents that the sample needs."""

RANDOM = "random"


def write_sample(run: Run) -> None:
    """Draw the sample and write both files.

    Raises:
        RunError: the composition is missing.
        CorruptFileError: an embeddings file does not hold the documents of the composition.
    """
    sql = "SELECT shard, candidates FROM shards WHERE candidates > 0 ORDER BY shard"
    shards = [(row["shard"], row["candidates"]) for row in query(run, sql)]
    if len(shards) > SAMPLED_SHARDS:
        generator = np.random.Generator(np.random.PCG64(run.settings.seed))
        chosen = generator.choice(len(shards), SAMPLED_SHARDS, replace=False)
        shards = [shards[number] for number in sorted(chosen)]
    sizes = [candidates for _, candidates in shards]
    has_vectors = run.settings.has_vectors
    counts, queries = _shares(sizes, SAMPLED_DOCUMENTS), _shares(sizes, ASKED * has_vectors)
    extremes = -(-EXTREMES // max(len(shards), 1))
    sampled = [
        _sample_shard(run, shard, count, asked, extremes)
        for (shard, _), count, asked in zip(shards, counts, queries, strict=True)
        if count or asked
    ]
    parts, vectors, neighbours = zip(*sampled, strict=True)
    features, documents = np.concatenate(vectors), pa.concat_tables(parts)
    metrics = {"mean_cosine": mean_cosine(features)}
    write_parquet(
        sample_path(run),
        SAMPLE,
        [_sample_table(run, documents, features)],
        lambda rows: run.make_receipt("report", 0, rows, metrics),
        storage=run.storage,
    )
    write_parquet(
        neighbours_path(run),
        NEIGHBOUR,
        neighbours,
        lambda rows: run.make_receipt("report", 0, rows),
        storage=run.storage,
    )


def _shares(sizes: list[int], total: int) -> list[int]:
    """Divide *total*, at most all, in proportion to sizes by cumulative rounding."""
    whole = sum(sizes)
    cuts = [min(total, whole) * bound // whole for bound in itertools.accumulate(sizes, initial=0)]
    return [after - before for before, after in itertools.pairwise(cuts)]


def _sample_shard(
    run: Run, shard: int, count: int, queries: int, extremes: int
) -> tuple[pa.Table, np.ndarray, pa.Table]:
    """Sample *count* random documents of a shard, *extremes* of a kind, *queries* of a set.

    Returns:
        The columns of `SAMPLE` that a shard knows, and quality; the vectors of the random documents
        among them, float32, n x D; and the shard's part of `neighbours.parquet`.
    """
    everything = run.read_output("documents", shard, READ).combine_chunks()
    # A filter by an expression would import pandas where it is installed.
    table = everything.filter(pc.is_null(everything["dropped"])).combine_chunks()
    size, selected = table.num_rows, table["selected"].to_numpy()
    generator = np.random.Generator(np.random.PCG64(shard_seed(run.settings.seed, shard)))
    members = {
        "selected": np.flatnonzero(selected),
        "top_quality": np.flatnonzero(table["top_quality"].to_numpy()),
        "random": np.sort(generator.permutation(size)[: int(selected.sum())]),
    }
    sampled = np.sort(generator.permutation(size)[:count])
    asked = {name: np.sort(generator.permutation(rows)[:queries]) for name, rows in members.items()}
    kinds = {RANDOM: sampled} | _extremes(table, extremes)
    shown = np.concatenate([*kinds.values()])
    features = np.zeros((size, 0), np.float16)
    if run.settings.has_vectors:
        check_rows(run, "embeddings", shard, size)
        features = read_vectors(run.path("embeddings", shard), run.settings.embedding.dimension)

    def near(rows: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not run.settings.has_vectors:
            return np.zeros(len(rows)), np.full(len(rows), -1)
        return nearest(features, rows, others)

    neighbours = [
        table.select(["shard", "row"])
        .take(rows)
        .add_column(0, "set", pa.repeat(name, len(rows)))
        .append_column("cosine", pa.array(near(rows, members[name])[0]))
        .cast(NEIGHBOUR)
        for name, rows in asked.items()
    ]
    cosines, at = near(shown, members["selected"])
    alike = np.argsort(-cosines, kind="stable")[:extremes]
    alike = alike[cosines[alike] >= NEAR_DUPLICATE_COSINE]
    kinds[NEAR_COPY] = shown[alike]
    shown, cosines, at = (np.append(of, of[alike]) for of in (shown, cosines, at))
    has_none = at < 0
    known_of = table.select(["id", "row"]).take(pa.array(at, mask=has_none))
    documents = pa.table(
        {name: table[name].take(shown) for name in ("shard", "row", "id", "quality")}
        | {
            "kind": pa.array([name for name, rows in kinds.items() for _ in rows], pa.string()),
            "quality_gain": pa.array(_quality_gains(run, shard, table)[shown], from_pandas=True),
            "nearest": known_of["id"],
            "nearest_row": known_of["row"],
            "cosine": pa.array(cosines, pa.float32(), mask=has_none),
        }
    )
    both = [documents, _dropped(everything, extremes, generator)]
    return (
        pa.concat_tables(both, promote_options="default"),
        features[sampled].astype(np.float32),
        pa.concat_tables(neighbours),
    )


def _extremes(table: pa.Table, most: int) -> dict[str, np.ndarray]:
    """Return rows of documents that show what the selection decides, *most* of each kind."""
    selected = table["selected"].to_numpy()
    logit, quality = (table[name].to_numpy() for name in ("logit", "quality"))
    kept, left = np.flatnonzero(selected), np.flatnonzero(~selected)
    return {
        "kept, near the threshold": kept[np.argsort(logit[kept], kind="stable")[:most]],
        "left out, near the threshold": left[np.argsort(-logit[left], kind="stable")[:most]],
        "kept, highest logit": kept[np.argsort(-logit[kept], kind="stable")[:most]],
        "left out, best quality": left[np.argsort(-quality[left], kind="stable")[:most]],
    }


def _quality_gains(run: Run, shard: int, table: pa.Table) -> np.ndarray:
    """Return each candidate's gain in logit by quality with a weight of 1, over the mean candidate.

    A logit is linear in quality (`learning.published`), with a slope of weight / scale. NaN for
    budgets of tokens, whose logits may belong to another S, and where logits do not come from this
    objective.
    """
    selection, quality = run.settings.selection, table["quality"].to_numpy()
    is_known = selection.method == "mask" and not selection.mask_model and selection.tokens is None
    if not is_known or selection.num_rounds == 1 or not len(quality):
        return np.full(len(quality), np.nan)
    if selection.scope == "corpus":
        scale = terms_of(run)["quality"]["scale"]
    else:
        scale = run.receipt("selection", shard).metrics["scales"]["quality"]
    gains: np.ndarray = (quality - quality.mean()) / scale
    return gains


def _dropped(table: pa.Table, most: int, generator: np.random.Generator) -> pa.Table:
    """Return documents that were dropped before embedding, up to *most* for each reason."""
    reasons = sorted(table["dropped"].drop_null().unique().to_pylist())
    if not reasons:
        return table[:0].select(["shard", "row", "id"])
    repeated = table["near_duplicate_of"]
    row = pc.index_in(repeated, table["id"], skip_nulls=True).cast(pa.int64())
    table = table.select(["shard", "row", "id", "quality", "dropped"])
    table = table.append_column("nearest", repeated).append_column("nearest_row", row)
    parts = []
    for reason in reasons:
        rows = np.flatnonzero(pc.equal(table["dropped"], reason).fill_null(False).to_numpy())
        rows = np.sort(generator.permutation(rows)[:most])
        parts.append(table.take(rows).rename_columns({"dropped": "kind"}))
    return pa.concat_tables(parts)


def nearest(
    features: np.ndarray, rows: np.ndarray, others: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest cosine of documents to others, and the row of that other.

    Products in float32, which depend on the number of threads, find candidates; exact sums order
    them.

    Args:
        features: float16, N x D, unit rows.
        rows: of the Q documents.
        others: rows of the documents to compare with, ascending.

    Returns:
        Float64 and int64, shape Q; 0 and -1 without others.
    """
    cosines, at = np.zeros(len(rows)), np.full(len(rows), -1)
    batches = [slice(start, start + QUERIES) for start in range(0, len(rows), QUERIES)]
    rough: dict[int, list[np.ndarray]] = {batch.start: [] for batch in batches}
    near: dict[int, list[np.ndarray]] = {batch.start: [] for batch in batches}
    asked = features[rows].astype(np.float32)
    for block in np.split(others, range(BLOCK, len(others), BLOCK)):
        compared = features[block].astype(np.float32).T
        column = np.searchsorted(block, rows)
        is_own = np.append(block, -1)[column] == rows
        for batch in batches:
            products = asked[batch] @ compared
            own = np.flatnonzero(is_own[batch])
            products[own, column[batch][own]] = -np.inf
            columns = _largest(products)
            rough[batch.start].append(np.take_along_axis(products, columns, 1))
            near[batch.start].append(block[columns])
    for batch in batches:
        rough_QK, near_QK = np.hstack(rough[batch.start]), np.hstack(near[batch.start])
        if not near_QK.shape[1]:
            continue
        queries = features[rows[batch]].astype(np.float64)
        exact_QK = np.einsum("qd,qkd->qk", queries, features[near_QK].astype(np.float64))
        exact_QK[~np.isfinite(rough_QK)] = -np.inf
        # Among equal ones, take the first in the source.
        best_Q1 = exact_QK.max(1, keepdims=True)
        first = np.where(exact_QK == best_Q1, near_QK, np.iinfo(np.int64).max).min(1)
        has = np.isfinite(best_Q1[:, 0])
        cosines[batch][has] = best_Q1[has, 0]
        at[batch][has] = first[has]
    return cosines, at


def _largest(values: np.ndarray) -> np.ndarray:
    """Return the columns of the `CHECKED` largest values of each row.

    They lie in the groups with the largest maxima. The columns of a group are evenly spaced.
    """
    rows, width = values.shape
    groups = width // GROUP
    maxima = values[:, : groups * GROUP].reshape(rows, GROUP, groups).max(1)
    columns = (_top(maxima)[:, :, None] + groups * np.arange(GROUP)).reshape(rows, -1)
    rest = np.broadcast_to(np.arange(groups * GROUP, width), (rows, width - groups * GROUP))
    columns = np.hstack([columns, rest])
    return np.take_along_axis(columns, _top(np.take_along_axis(values, columns, 1)), 1)


def _top(values: np.ndarray) -> np.ndarray:
    """Return the columns of the `CHECKED` largest values of each row, in any order, or all."""
    first = max(values.shape[1] - CHECKED, 0)
    if not first:
        return np.broadcast_to(np.arange(values.shape[1]), values.shape)
    return np.argpartition(values, first, 1)[:, first:]


def mean_cosine(features: np.ndarray) -> float:
    """Return the mean over all pairs of different documents; 0 if there is no pair.

    Args:
        features: n x D, unit rows.
    """
    total = features.sum(0, dtype=np.float64)
    own = float(np.square(features, dtype=np.float64).sum())
    return (float(total @ total) - own) / max(len(features) * (len(features) - 1), 1)


def _sample_table(run: Run, documents: pa.Table, features: np.ndarray) -> pa.Table:
    """Build the sample's table with a map and texts."""
    kinds = documents["kind"].to_numpy(zero_copy_only=False)
    points = np.full((len(kinds), 2), np.nan, dtype=np.float32)
    if run.settings.has_vectors:
        points[kinds == RANDOM] = embedding_map(features, run.settings.seed)
    is_mapped = np.isfinite(points[:, 0])
    keys = list(zip(*(documents[name].to_pylist() for name in ("shard", "row")), strict=True))
    # Add texts of the most similar pairs; dropped near-duplicates have no cosine.
    cosines, nearest_rows = documents["cosine"].to_numpy(), documents["nearest_row"].to_pylist()
    pairs = np.flatnonzero([row is not None for row in nearest_rows])
    pairs = pairs[np.argsort(-np.nan_to_num(cosines[pairs], nan=1.0), kind="stable")][:MOST_PAIRS]
    others = {at: (keys[at][0], nearest_rows[at]) for at in pairs.tolist()}
    texts = beginnings(run, [*keys, *others.values()])
    columns = {name: documents[name] for name in documents.column_names if name != "quality"} | {
        "x": pa.array(points[:, 0], mask=~is_mapped),
        "y": pa.array(points[:, 1], mask=~is_mapped),
        "text": pa.array([texts.get(key) for key in keys], pa.string()),
        "nearest_text": pa.array(
            [texts.get(others.get(at, (-1, -1))) for at in range(len(keys))], pa.string()
        ),
    }
    return pa.table(columns).select(SAMPLE.names).cast(SAMPLE)


def embedding_map(features: np.ndarray, seed: int) -> np.ndarray:
    """Compute t-SNE of some documents, deterministic on one machine.

    Args:
        features: float32, n x D, unit rows.
        seed: of t-SNE.

    Returns:
        float32, n x 2, in units of the map's standard deviation; three decimals.
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    if len(features) < 4 or not np.ptp(features, axis=0).any():
        return np.zeros((len(features), 2), dtype=np.float32)
    # Sums over threads differ in their last digits, and t-SNE amplifies the difference.
    with threadpool_limits(1):
        number = min(PRINCIPAL_COMPONENTS, *features.shape)
        reduced = PCA(number, svd_solver="full").fit_transform(features)
        made = TSNE(
            perplexity=min(PERPLEXITY, (len(features) - 1) / 3),
            max_iter=ITERATIONS,
            angle=ANGLE,
            early_exaggeration=EXAGGERATION,
            random_state=seed % 2**32,
        )
        points = made.fit_transform(reduced)
    result: np.ndarray = np.round(points / (points.std() or 1.0), 3).astype(np.float32)
    return result
