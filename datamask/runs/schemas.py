"""The declared Arrow schemas of a run's files, and casting to them.

One schema per kind of file, the same in every shard: data either casts to it or fails with the
place. Ids are text everywhere inside a run, whatever the source's type.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

PLAN = pa.schema(
    [
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("first_row_group", pa.int32(), nullable=False),
        pa.field("num_row_groups", pa.int32(), nullable=False),
        pa.field("skip_rows", pa.int64(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("digest", pa.string(), nullable=False),
    ]
)
"""`skip_rows`: rows of the first row group that belong to an earlier shard."""

MASK = pa.schema(
    [
        pa.field("chunk_id", pa.string(), nullable=False),
        pa.field("logit", pa.float32(), nullable=False),
        pa.field("selected", pa.bool_(), nullable=False),
    ]
)
"""One row per document that survived pruning, in the source's order.

`logit` is the document's marginal gain when learning has ended, less the threshold of what it was
compared with, in deviations over single documents (`datamask.learning.published`): above 0 for the
selected documents, where no limit intervenes.
"""

DROP_REASONS = ("empty", "missing-score", "duplicate", "pruned")
"""Why a document is not offered to the learner, in the order in which they are checked."""


LOGITS = pa.schema(
    [
        pa.field("chunk_id", pa.string(), nullable=False),
        pa.field("logit", pa.float32(), nullable=False),
    ]
)
"""`logits/`: what was learnt of a shard, before all shards are cut together."""

PROBE = pa.schema(
    [
        pa.field("probe", pa.string(), nullable=False),
        pa.field("weights", pa.list_(pa.float64()), nullable=False),
        pa.field("intercept", pa.float64(), nullable=False),
    ]
)
"""`probe.parquet`: a row for each probe, in the order of the settings."""

MOMENTS = pa.schema(
    [
        pa.field("count", pa.float64(), nullable=False),
        pa.field("quality", pa.float64(), nullable=False),
        pa.field("tokens", pa.float64(), nullable=False),
        *(
            pa.field(name, pa.list_(pa.float64()), nullable=False)
            for name in ("scores", "first", "second")
        ),
    ]
)
"""`totals/`: one row, sums over documents by inclusion probability.

`scores` in the order of the settings; `first` is Σ p x, `second` the upper triangle of Σ p xxᵀ, row
by row; both are empty where no term reads them.
"""

CORPUS_STATISTICS = pa.schema(
    [
        *MOMENTS,
        pa.field("sample_features", pa.list_(pa.float16()), nullable=False),
        pa.field("sample_quality", pa.list_(pa.float64()), nullable=False),
        pa.field("sample_scores", pa.list_(pa.float32()), nullable=False),
    ]
)
"""`corpus_statistics/` and `totals/00`: one row, moments of all documents, and a sample of them."""

OUTCOME = pa.schema([pa.field("selection", pa.string(), nullable=False), *MOMENTS])
"""`outcome/`: moments of a shard's `selected` documents, then of those in its `top_quality`."""

ROUND = pa.schema(
    [
        *MOMENTS,
        pa.field("before", pa.list_(pa.float32()), nullable=False),
        pa.field("proposed", pa.list_(pa.float32()), nullable=False),
        pa.field("step_size", pa.list_(pa.float64()), nullable=False),
    ]
)
"""`round/NN/`: one row, moments of a shard's proposal, its logits before and after, its step
size."""

CUT = pa.schema(
    [
        pa.field("group", pa.string()),
        pa.field("cap", pa.int64()),
        pa.field("logit", pa.float32(), nullable=False),
        pa.field("quality", pa.float64(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("beyond", pa.list_(pa.string()), nullable=False),
        pa.field("documents", pa.int64(), nullable=False),
        pa.field("units", pa.int64(), nullable=False),
    ]
)
"""What is kept of each group with limits, and of all the others (null).

In order of higher logit, higher quality, smaller id, a group keeps its documents down to the one
given, less those longer than `cap` (null: no limits), and those whose ids `beyond` lists. Units are
documents or tokens, as the budget is in; `documents` and `units` count what is kept.
"""


def scores(names: Iterable[str]) -> pa.Schema:
    """`scores/`: the facts of every document of a shard, in the source's order.

    `row` counts from 0 within the shard. Facts the source does not have are null, and so are blank
    dumps, languages and domains; `characters` and
    `content`, the first 16 bytes of the text's SHA-256, are null for layout `features`. Raw scores
    are null where missing.
    """
    return pa.schema(
        [
            pa.field("id", pa.string(), nullable=False),
            pa.field("row", pa.int64(), nullable=False),
            pa.field("characters", pa.int64()),
            pa.field("tokens", pa.int64()),
            pa.field("dump", pa.string()),
            pa.field("language", pa.string()),
            pa.field("domain", pa.string()),
            pa.field("content", pa.binary(16)),
            *(pa.field(name, pa.float64()) for name in names),
        ]
    )


def classifier_scores(names: Iterable[str]) -> pa.Schema:
    """`classifier_scores/`: what classifiers gave every document, in the source's order."""
    scores = (pa.field(name, pa.float64(), nullable=False) for name in names)
    return pa.schema([pa.field("id", pa.string(), nullable=False), *scores])


def probe_scores(names: Iterable[str]) -> pa.Schema:
    """`probe_scores/`: what probes give every embedded document, in the source's order."""
    scores = (pa.field(name, pa.float64(), nullable=False) for name in names)
    return pa.schema([pa.field("chunk_id", pa.string(), nullable=False), *scores])


def quality(names: Iterable[str]) -> pa.Schema:
    """`quality/`: every document of a shard: normalised scores, combined quality, why dropped.

    `quality` is null where a score is missing; `dropped` is null for documents that go on,
    otherwise one of `DROP_REASONS`.
    """
    return pa.schema(
        [
            pa.field("id", pa.string(), nullable=False),
            pa.field("row", pa.int64(), nullable=False),
            *(pa.field(name, pa.float64()) for name in names),
            pa.field("quality", pa.float64()),
            pa.field("dropped", pa.string()),
        ]
    )


def embeddings(dimension: int) -> pa.Schema:
    """`embeddings/`: unit vectors of the documents that survived pruning, in the source's order."""
    return pa.schema(
        [
            pa.field("chunk_id", pa.string(), nullable=False),
            pa.field(
                "feature_arr",
                pa.list_(pa.field("element", pa.float16(), nullable=False), dimension),
                nullable=False,
            ),
        ]
    )


def added_columns(prefix: str) -> pa.Schema:
    """The columns that `subset/` has after the source's own (`subset.column_prefix`)."""
    return pa.schema(
        [
            pa.field(f"{prefix}quality", pa.float64()),
            pa.field(f"{prefix}logit", pa.float32()),
            pa.field(f"{prefix}shard", pa.int32()),
        ]
    )


def curves(terms: Iterable[str]) -> pa.Schema:
    """`curves/`: one row per recorded step: the joint objective and each term, unscaled."""
    return pa.schema(
        [
            pa.field("step", pa.int64(), nullable=False),
            pa.field("seconds", pa.float64(), nullable=False),
            pa.field("objective", pa.float64(), nullable=False),
            *(pa.field(name, pa.float64(), nullable=False) for name in terms),
        ]
    )
