"""Stages `topic_model` and `topics`: topics of documents, from clusters of their vectors.

Spherical k-means works on two levels. Some vectors of a sample form clusters, and the directions of
the clusters, weighted by their documents, form `topics.number` topics. Then the direction of each
topic moves to the mean of the sampled vectors that are nearest to it, a few times. A document has
the topic whose direction is nearest to its vector. A topic is named by its most typical words
(class-based TF-IDF): a word's value is the fraction of the topic's sampled documents that have it,
times the logarithm of one over the fraction of all sampled documents that have it. Stop words have
a logarithm near 0. Without text, topics are numbered.

New documents have the topics of the finished run, whose mask model holds the directions.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from datamask.baselines.clustered import k_means
from datamask.config.compute import Compute
from datamask.config.selection import NO_GROUP
from datamask.embedding.vectors import read_vectors, row_groups
from datamask.errors import SettingsError, did_you_mean
from datamask.runs import schemas
from datamask.runs.output import write_output
from datamask.runs.run import Run, shard_seed
from datamask.selection.mask_model import read_topics
from datamask.selection.model_file import judged_by
from datamask.source.texts import beginnings

CLUSTERS_OF_A_TOPIC, MOST_CLUSTERS, SAMPLED, LEAST_SAMPLED, MOST_SHARDS = 12, 1000, 50, 20, 16
"""Number of clusters for each topic, and at most; of sampled documents for each cluster, and how
many of them form clusters; and the most shards that samples come from (docs/log.md#topics)."""

ATTEMPTS, ROUNDS = 10, 5
"""Number of runs of k-means that merge clusters into topics; the best counts. Number of times that
directions move (docs/log.md#topics)."""

NAMED_TEXTS, VOCABULARY, WORDS = 10_000, 50_000, 3
"""Maximum number of texts whose words are counted, of different words, and of words in a name
(docs/log.md#topics)."""

ROWS_AT_ONCE = 8192
"""Maximum number of documents whose cosines with all directions are in memory
(docs/log.md#topics)."""

WORD = r"(?u)\b[^\W\d_]{3,}\b"
"""Words that can name a topic: three letters or more."""


def fit_topics(run: Run, compute: Compute) -> None:
    """Find topics in a sample of the vectors, and write their names and directions.

    The file is `topic_model.parquet` (`schemas.TOPIC_MODEL`).

    Raises:
        InputError: a file of the source is missing or unreadable.
    """
    settings = run.settings.topics
    assert settings is not None
    features, _ = _sample(run, SAMPLED * _most_clusters(settings.number))
    directions = cluster(features, settings.number, run.settings.seed)
    sizes = np.bincount(nearest(features, directions))
    vectors, rows = _sample(run, NAMED_TEXTS, is_scattered=False)
    texts, labels = beginnings(run, rows), nearest(vectors, directions)
    known = [(texts[row], label) for row, label in zip(rows, labels, strict=True) if row in texts]
    names = name_topics(known, sizes)
    table = pa.table({"topic": names, "direction": directions.tolist()}, schema=schemas.TOPIC_MODEL)
    write_output(run, "topic_model", 0, schemas.TOPIC_MODEL, [table], {"sampled": len(features)})


def _sample(
    run: Run, most: int, *, is_scattered: bool = True
) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Read vectors (float32, n x D) of about *most* embedded documents, and their shards and rows.

    Documents of a shard are scattered, or follow each other, so that few row groups are read.
    """
    kept = {shard: run.receipt("embeddings", shard).rows for shard in range(run.num_shards)}
    generator = np.random.default_rng(shard_seed(run.settings.seed, 0))
    shards = generator.permutation([shard for shard, rows in kept.items() if rows])[:MOST_SHARDS]
    documents = sum(kept[shard] for shard in shards.tolist())
    vectors, sampled = [], []
    for shard in np.sort(shards).tolist():
        wanted = min(kept[shard], -(-most * kept[shard] // documents))
        rows = generator.integers(kept[shard] - wanted + 1) + np.arange(wanted)
        if is_scattered:
            rows = np.sort(generator.permutation(kept[shard])[:wanted])
        path, dimension = run.path("embeddings", shard), run.settings.embedding.dimension
        vectors.append(read_vectors(path, dimension, rows, np.float32))
        # Topics may normalise the quality that is learned from.
        quality = run.read_output("quality", shard, ["row", "dropped"])
        of_source = quality.filter(pc.is_null(quality["dropped"]))["row"].take(pa.array(rows))
        sampled += [(shard, row) for row in of_source.to_pylist()]
    return np.concatenate(vectors), sampled


def _most_clusters(topics: int) -> int:
    return min(MOST_CLUSTERS, CLUSTERS_OF_A_TOPIC * topics)


def cluster(features: np.ndarray, topics: int, seed: int) -> np.ndarray:
    """Two levels of spherical k-means.

    Args:
        features: unit rows, float32, N x D; N at least 1.
        topics: their number; there are fewer if N is smaller.
        seed: of the random choices.

    Returns:
        The direction of each topic: unit rows, float32. Each is the nearest to some row.
    """
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    most = max(topics, len(features) // LEAST_SAMPLED)
    number = min(_most_clusters(topics), most, len(features))
    order = np.random.default_rng(seed).permutation(len(features))
    some = features[order[: LEAST_SAMPLED * number]]
    directions = _moved(some, some[:number])
    used, sizes = np.unique(nearest(some, directions), return_counts=True)
    directions = directions[used]
    if len(directions) > topics:
        # One thread gives sums a fixed order. Equal vectors make fewer clusters than asked for.
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            directions = k_means(directions, topics, seed, sizes, ATTEMPTS)[1]
    directions = _moved(features, directions)
    topic_directions: np.ndarray = directions[np.unique(nearest(features, directions))]
    return topic_directions


def _moved(features: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Move each direction to the mean of its nearest documents, `ROUNDS` times."""
    blocks = torch.split(torch.from_numpy(features), ROWS_AT_ONCE)
    columns = torch.eye(len(directions))
    for _ in range(ROUNDS):
        labels = torch.split(torch.from_numpy(nearest(features, directions)), ROWS_AT_ONCE)
        sums = torch.zeros(directions.shape)
        for block, label in zip(blocks, labels, strict=True):
            # A product has the same sums with any number of threads.
            sums += columns[label].T @ block
        means = torch.where(sums.any(1, keepdim=True), sums, torch.from_numpy(directions))
        directions = np.asarray(torch.nn.functional.normalize(means, dim=1))
    return directions


def nearest(features: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Return the index of the direction nearest to each document by cosine; int64, shape N."""
    columns = torch.from_numpy(directions).T
    blocks = torch.split(torch.from_numpy(features.astype(np.float32)), ROWS_AT_ONCE)
    indices: np.ndarray = torch.cat([(block @ columns).argmax(1) for block in blocks]).numpy()
    return indices


def name_topics(texts: list[tuple[str, int]], sizes: np.ndarray) -> list[str]:
    """Name each topic: by words, or by its number in order of size where there are none.

    Args:
        texts: of sampled documents, with their topics.
        sizes: sampled documents of each topic.
    """
    ranks = np.argsort(np.argsort(-sizes, kind="stable"), kind="stable")
    words = typical_words(texts, len(sizes)) if texts else [[]] * len(sizes)
    names: list[str] = []
    for rank, typical in zip(ranks.tolist(), words, strict=True):
        name = " ".join(typical) or f"topic {rank + 1}"
        names.append(f"{name} {rank + 1}" if name in names else name)
    return names


def typical_words(texts: list[tuple[str, int]], topics: int) -> list[list[str]]:
    """Return the most typical words of each topic (*topics* of them), the most typical first.

    *texts* are documents with their topics, from 0.
    """
    from sklearn.feature_extraction.text import CountVectorizer

    counter = CountVectorizer(binary=True, token_pattern=WORD, max_features=VOCABULARY)
    try:
        counts = counter.fit_transform(text for text, _ in texts)
    except ValueError:  # No text has a word.
        return [[]] * topics
    labels = np.array([topic for _, topic in texts])
    known, typical = counter.get_feature_names_out(), []
    rarity = np.log(len(texts) / np.asarray(counts.sum(0)).ravel())
    for topic in range(topics):
        members = counts[labels == topic]
        share = np.asarray(members.sum(0)).ravel() / max(members.shape[0], 1)
        weight = share * rarity
        best = np.argsort(-weight, kind="stable")[:WORDS]
        typical.append(known[best[weight[best] > 0]].tolist())
    return typical


def read_topic_model(run: Run) -> tuple[list[str], np.ndarray]:
    """Read the names of the topics and their directions (float32).

    A run that a mask model judges has the topics of that model.
    """
    if about := judged_by(run):
        return read_topics(run.settings.selection.mask_model, about)
    run.receipt("topic_model")
    table = run.read_output("topic_model")
    directions = np.stack(table["direction"].to_numpy(zero_copy_only=False)).astype(np.float32)
    return table["topic"].to_pylist(), directions


def unknown_topics(run: Run) -> list[SettingsError]:
    """List a problem for each unknown topic that limits or terms name."""
    selection, known = run.settings.selection, [*dict.fromkeys(read_topic_model(run)[0]), NO_GROUP]
    named = selection.named_groups("topic")
    for options in (term.options for term in selection.more_terms):
        named += options.get("shares", ()) if options.get("column") == "topic" else ()
    return [
        SettingsError(
            f"selection: there is no topic `{name}`"
            f"{did_you_mean(name, known) or '; topics are: ' + ', '.join(known)}"
        )
        for name in dict.fromkeys(named)
        if name not in known
    ]


def assign_topics(run: Run, shard: int, compute: Compute) -> None:
    """Write `topics/NNNNN.parquet`: the topic of every embedded document.

    Errors are as in `read_topic_model`.
    """
    run.receipt("embeddings", shard)
    names, directions = read_topic_model(run)
    path, dimension = run.path("embeddings", shard), run.settings.embedding.dimension
    known = pa.array(names, pa.string())

    def topics() -> Any:
        for block in row_groups(path, dimension):
            topic = known.take(pa.array(nearest(block, directions)))
            yield pa.table({"topic": topic}, schema=schemas.TOPICS)

    write_output(run, "topics", shard, schemas.TOPICS, topics(), {})
