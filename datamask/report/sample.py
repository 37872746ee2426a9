"""The documents the report looks at closely: a seeded sample, its map and its neighbours.

Counts and means in the report are of every document; what needs embeddings is of a sample, because
a corpus of 10⁸ documents has more pairs than anybody can compare. The sample is drawn from at most
32 shards. Its documents are compared with *all* documents of their shard, a block of embeddings at
a time, so that a nearest neighbour is the nearest there is among those it competed with.

Two files in `RUN/report/` hold the results, for further computation:

- `sample.parquet`: shard, row, id; `x`, `y` on the map (null if not on it); `density`, the mean
  cosine to the ten nearest of the shard; `diverse`, whether the sample's most diverse documents
  (the same metric, lambda 0, the run's ratio) include it; `beginning` of the text; its receipt has
  `mean_cosine`, the mean over all pairs of the sample
- `neighbours.parquet`: set (candidates, selected, top_quality, random), shard, row, and `cosine`
  to the nearest other document of the same set and shard
"""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from datamask.analysis.composition import open_composition
from datamask.config.compute import Compute
from datamask.config.outputs import SAMPLED_SHARDS
from datamask.embedding.vectors import blocks, vectors_at
from datamask.learning.learner import learn_mask, shard_data
from datamask.runs.files import write_parquet
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run, shard_seed
from datamask.source.texts import beginnings

logger = logging.getLogger(__name__)

NEIGHBOURS = 10
SETS = ("candidates", "selected", "top_quality", "random")
PRINCIPAL_COMPONENTS = 50
PERPLEXITY = 30
MOST_STEPS = 200
ITERATIONS = 600

SAMPLE = pa.schema(
    [
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("x", pa.float32()),
        pa.field("y", pa.float32()),
        pa.field("density", pa.float32(), nullable=False),
        pa.field("diverse", pa.bool_(), nullable=False),
        pa.field("beginning", pa.string()),
    ]
)
NEIGHBOUR = pa.schema(
    [
        pa.field("set", pa.string(), nullable=False),
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("cosine", pa.float32(), nullable=False),
    ]
)


def sample_path(run: Run) -> Path:
    """Where the sample is kept."""
    return run.root / "report" / "sample.parquet"


def neighbours_path(run: Run) -> Path:
    """Where the neighbours' cosines are kept."""
    return run.root / "report" / "neighbours.parquet"


@dataclass(frozen=True, slots=True)
class ShardSample:
    """What was found in one shard; arrays over the n documents sampled there.

    Args:
        shard: its number.
        rows: row in the shard.
        ids: ids.
        quality: combined quality.
        features: float32, n x D.
        density: mean cosine to the nearest ten candidates.
        sets: rows and cosines by set.
    """

    shard: int
    rows: np.ndarray
    ids: np.ndarray
    quality: np.ndarray
    features: np.ndarray
    density: np.ndarray
    sets: dict[str, tuple[np.ndarray, np.ndarray]]


def write_sample(run: Run, compute: Compute) -> None:
    """Draw the sample and write both files.

    Raises:
        RunError: the composition is missing.
        CorruptFileError: an embeddings file does not hold the documents of the composition.
    """
    settings = run.settings.report
    candidates = _candidates(run)
    shards = _chosen_shards(run, candidates)
    share = _shares([candidates[shard] for shard in shards], settings.sample_documents)
    found = [
        _look(run, shard, count, share_of_queries, compute)
        for shard, count, share_of_queries in zip(
            shards,
            share,
            _shares([candidates[shard] for shard in shards], settings.neighbour_documents),
            strict=True,
        )
    ]
    rows = _sample_table(run, found, compute)
    metrics = {"mean_cosine": mean_cosine(np.concatenate([one.features for one in found]))}

    def receipt(rows: int) -> Receipt:
        return run.make_receipt("report", 0, rows, metrics)

    write_parquet(sample_path(run), SAMPLE, [rows], receipt, storage=run.storage)
    pairs = [
        pa.table(
            {
                "set": [name] * len(at),
                "shard": np.full(len(at), one.shard, dtype=np.int32),
                "row": at,
                "cosine": cosines.astype(np.float32),
            },
            schema=NEIGHBOUR,
        )
        for one in found
        for name, (at, cosines) in one.sets.items()
    ]
    write_parquet(
        neighbours_path(run),
        NEIGHBOUR,
        pairs,
        lambda rows: run.make_receipt("report", 0, rows),
        storage=run.storage,
    )


def _candidates(run: Run) -> dict[int, int]:
    """Documents that survived pruning, by shard."""
    with open_composition(run) as connection:
        return dict(connection.execute("SELECT shard, candidates FROM shards").fetchall())


def _chosen_shards(run: Run, candidates: dict[int, int]) -> list[int]:
    full = [shard for shard in sorted(candidates) if candidates[shard]]
    if len(full) <= SAMPLED_SHARDS:
        return full
    generator = np.random.Generator(np.random.PCG64(run.settings.seed))
    return sorted(generator.choice(full, SAMPLED_SHARDS, replace=False).tolist())


def _shares(sizes: list[int], total: int) -> list[int]:
    """*total*, or all there are, dealt in proportion to sizes by cumulative rounding."""
    bounds = np.cumsum([0, *sizes])
    total = min(total, int(bounds[-1]))
    cut = [total * int(bound) // max(int(bounds[-1]), 1) for bound in bounds]
    return [after - before for before, after in itertools.pairwise(cut)]


def _look(run: Run, shard: int, count: int, queries: int, compute: Compute) -> ShardSample:
    with open_composition(run) as connection:
        table = connection.sql(
            "SELECT row, id, quality, selected, top_quality FROM documents "
            "WHERE shard = $shard AND dropped IS NULL ORDER BY row",
            params={"shard": shard},
        ).to_arrow_table()
    size = table.num_rows
    generator = np.random.Generator(np.random.PCG64(shard_seed(run.settings.seed, shard)))
    selected = table["selected"].to_numpy()
    members = {
        "candidates": np.arange(size),
        "selected": np.flatnonzero(selected),
        "top_quality": np.flatnonzero(table["top_quality"].to_numpy()),
        "random": np.sort(generator.permutation(size)[: int(selected.sum())]),
    }
    sampled = np.sort(generator.permutation(size)[:count])
    asked = {name: np.sort(generator.permutation(rows)[:queries]) for name, rows in members.items()}
    places = np.unique(np.concatenate([sampled, *asked.values()]))
    dimension = run.settings.embedding.dimension
    features = vectors_at(run.path("embeddings", shard), dimension, places, size)
    device = shard_data(np.zeros((1, 1)), np.zeros(1), {}, compute).device

    def vectors(rows: np.ndarray) -> Tensor:
        return torch.from_numpy(features[np.searchsorted(places, rows)]).to(device)

    # The ten nearest by similarity to the sample; for the sets the nearest alone.
    nearest = {name: _Nearest(vectors(rows), rows, 1) for name, rows in asked.items() if len(rows)}
    dense = _Nearest(vectors(sampled), sampled, NEIGHBOURS)
    largest = max([len(sampled), *(len(rows) for rows in asked.values())])
    width = max(256, compute.working_set_bytes // (16 * largest))
    for start, block in blocks(run.path("embeddings", shard), dimension, width):
        on_device = torch.from_numpy(block).to(device)
        dense.add(on_device, np.arange(start, start + len(block)))
        for name, found in nearest.items():
            rows = members[name]
            part = rows[np.searchsorted(rows, start) : np.searchsorted(rows, start + len(block))]
            found.add(on_device[torch.from_numpy(part - start).to(device)], part)
    logger.info("report: shard %05d: %d of %d documents compared with all", shard, count, size)
    row, none = table["row"].to_numpy(), np.zeros(0)
    return ShardSample(
        shard,
        row[sampled],
        np.asarray(table["id"].to_pylist(), dtype=object)[sampled],
        table["quality"].to_numpy()[sampled],
        features[np.searchsorted(places, sampled)],
        dense.mean(),
        {
            name: (row[rows], nearest[name].mean() if name in nearest else none)
            for name, rows in asked.items()
        },
    )


class _Nearest:
    """The largest cosines of some documents to any other, kept while blocks go by."""

    def __init__(self, queries_QD: Tensor, places: np.ndarray, count: int) -> None:
        self.queries_QD = queries_QD
        self.places = places
        self.best_QK = queries_QD.new_full((len(places), count), -torch.inf)

    def add(self, block_BD: Tensor, places: np.ndarray) -> None:
        """Compare with a block; *places* say which documents it holds."""
        if not len(places):
            return
        cosines_QB = self.queries_QD @ block_BD.T
        # A document is not its own neighbour.
        column = np.searchsorted(places, self.places)
        within = column < len(places)
        same = np.flatnonzero(within)[places[column[within]] == self.places[within]]
        at = torch.from_numpy(same).to(block_BD.device)
        cosines_QB[at, torch.from_numpy(column[same]).to(block_BD.device)] = -torch.inf
        count = self.best_QK.shape[1]
        best = cosines_QB.topk(min(count, len(places)), dim=1).values
        self.best_QK = torch.cat([self.best_QK, best], dim=1).topk(count, dim=1).values

    def mean(self) -> np.ndarray:
        """Mean over those found; 0 for a document that is alone. float64, shape Q."""
        found = torch.isfinite(self.best_QK)
        total = torch.where(found, self.best_QK, 0.0).sum(1, dtype=torch.float64)
        result: np.ndarray = (total / found.sum(1).clamp(min=1)).cpu().numpy()
        return result


def mean_cosine(features: np.ndarray) -> float:
    """Mean over all pairs of two different documents; 0 where there is no pair.

    Args:
        features: n x D, unit rows.
    """
    total = features.sum(0, dtype=np.float64)
    own = float(np.square(features, dtype=np.float64).sum())
    return (float(total @ total) - own) / max(len(features) * (len(features) - 1), 1)


def _sample_table(run: Run, found: list[ShardSample], compute: Compute) -> pa.Table:
    shard = np.concatenate([np.full(len(one.rows), one.shard) for one in found])
    rows = np.concatenate([one.rows for one in found])
    features = np.concatenate([one.features for one in found])
    count = min(run.settings.report.map_documents, len(rows))
    generator = np.random.Generator(np.random.PCG64(run.settings.seed))
    mapped = np.sort(generator.permutation(len(rows))[:count])
    places = np.full((len(rows), 2), np.nan, dtype=np.float32)
    places[mapped] = embedding_map(features[mapped], run.settings.seed)
    on_map = np.isin(np.arange(len(rows)), mapped)
    wanted = [(int(shard[at]), int(rows[at])) for at in mapped]
    texts = beginnings(run, wanted)
    return pa.table(
        {
            "shard": shard.astype(np.int32),
            "row": rows,
            "id": np.concatenate([one.ids for one in found]).tolist(),
            "x": pa.array(places[:, 0], mask=~on_map),
            "y": pa.array(places[:, 1], mask=~on_map),
            "density": np.concatenate([one.density for one in found]).astype(np.float32),
            "diverse": _diverse(run, found, features, compute),
            "beginning": [
                texts.get(place) for place in zip(shard.tolist(), rows.tolist(), strict=True)
            ],
        },
        schema=SAMPLE,
    )


def _diverse(
    run: Run, found: list[ShardSample], features: np.ndarray, compute: Compute
) -> np.ndarray:
    """Which documents of the sample its most diverse subset has, at the run's share."""
    with open_composition(run) as connection:
        kept, left = connection.execute(
            "SELECT sum(selected), sum(candidates) FROM shards"
        ).fetchall()[0]
    count = len(features) * int(kept) // max(int(left), 1)
    selection = run.settings.selection
    changes = {"method": "mask", "quality_weight": 0.0, "more_terms": ()}
    learned = learn_mask(
        features,
        np.concatenate([one.quality for one in found]),
        selection.model_copy(update={**changes, "steps": min(selection.steps, MOST_STEPS)}),
        count,
        seed=run.settings.seed,
        compute=compute,
    )
    return learned.selected


def embedding_map(features: np.ndarray, seed: int) -> np.ndarray:
    """t-SNE of some documents; the same for the same input on the same machine.

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
    # Sums divided among threads would differ in their last digits, and t-SNE magnifies that.
    with threadpool_limits(1):
        wide = features.astype(np.float64) - features.mean(0, dtype=np.float64)
        values, axes = np.linalg.eigh(wide.T @ wide)
        axes = axes[:, np.argsort(-values)][:, :PRINCIPAL_COMPONENTS]
        # An axis has no sign; this one does not depend on the library.
        axes = axes * np.sign(axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])])
        reduced = (wide @ axes).astype(np.float32)
        deviation = float(reduced[:, 0].std())
        if not deviation:
            return np.zeros((len(features), 2), dtype=np.float32)
        start = reduced[:, :2] / deviation * 1e-4
        perplexity = min(PERPLEXITY, (len(features) - 1) / 3)
        made = TSNE(
            2, perplexity=perplexity, init=start, max_iter=ITERATIONS, random_state=seed % 2**32
        )
        places = made.fit_transform(reduced)
    result: np.ndarray = np.round(places / (places.std() or 1.0), 3).astype(np.float32)
    return result
