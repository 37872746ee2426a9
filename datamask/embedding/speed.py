"""How fast the embeddings of a run were made, from the records of its shards.

A record is of a shard's last attempt, and counts what that attempt did, not what an earlier one had
left in checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass

from datamask.runs.records import WorkRecord, read_record
from datamask.runs.run import Run

METRICS = ("documents", "tokens", "padded_tokens", "seconds", "waited_seconds")
"""What an attempt notes: documents and tokens embedded, the latter also with padding; seconds
without the model's loading; and those of them in which the model had to wait for its input."""


@dataclass(frozen=True, slots=True)
class EmbeddingSpeed:
    """How fast texts were embedded.

    Args:
        documents_per_second: of one worker.
        padding: share of the computed tokens that were padding; None where there are no tokens.
        waited: share of the time in which the model waited for its input.
    """

    documents_per_second: float
    padding: float | None
    waited: float


def embedding_speed(
    run: Run, shard: int | None = None, stage: str = "embeddings"
) -> EmbeddingSpeed | None:
    """How fast a shard, or all of them, was embedded or classified; None if no record tells."""
    shards = range(run.num_shards) if shard is None else (shard,)
    return speed_of([read_record(run, stage, one) for one in shards])


def speed_of(records: list[WorkRecord | None]) -> EmbeddingSpeed | None:
    """The same from records that were read."""
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
