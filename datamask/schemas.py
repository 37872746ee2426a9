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
"""One row per document that survived pruning, in the source's order."""

DROP_REASONS = ("empty", "missing-score", "pruned")
"""Why a document is not offered to the learner, in the order in which they are checked."""


def scores(names: Iterable[str]) -> pa.Schema:
    """`scores/`: the facts of every document of a shard, in the source's order.

    `row` counts from 0 within the shard. Facts the source does not have are null; `characters` is
    null for layout `features`. Raw scores are null where missing.
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
            *(pa.field(name, pa.float64()) for name in names),
        ]
    )


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
