"""The speed at which the embeddings of a run were made, from the records of its shards.

A record describes the last attempt of a shard and excludes what earlier attempts had saved.
"""

from __future__ import annotations

from dataclasses import dataclass

from datamask.runs.records import WorkRecord, read_record
from datamask.runs.run import Run

METRICS = ("documents", "tokens", "padded_tokens", "seconds", "waited_seconds")
"""Metrics of an attempt: documents and tokens embedded, tokens with padding, seconds without the
loading of the model, and seconds in which the model waited for its input."""


@dataclass(frozen=True, slots=True)
class EmbeddingSpeed:
    """The speed of embedding.

    Args:
        documents_per_second: of one worker.
        padding: share of the computed tokens that are padding, in [0, 1]; None without tokens.
        waited: share of the time in which the model waited for its input, in [0, 1].
    """

    documents_per_second: float
    padding: float | None
    waited: float


def embedding_speed(
    run: Run, shard: int | None = None, stage: str = "embeddings"
) -> EmbeddingSpeed | None:
    """The speed of embedding or classifying a shard, or all shards; None without records."""
    shards = range(run.num_shards) if shard is None else (shard,)
    return speed_of([read_record(run, stage, one) for one in shards])


def speed_of(records: list[WorkRecord | None]) -> EmbeddingSpeed | None:
    """The speed according to records; None if they count no documents."""
    metrics = [record.metrics for record in records if record is not None]
    sums = {name: sum(one.get(name, 0.0) for one in metrics) for name in METRICS}
    if not sums["documents"] or not sums["seconds"]:
        return None
    padded = sums["padded_tokens"]
    return EmbeddingSpeed(
        sums["documents"] / sums["seconds"],
        1 - sums["tokens"] / padded if padded else None,
        sums["waited_seconds"] / sums["seconds"],
    )
