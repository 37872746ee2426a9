"""The speed at which the embeddings of a run were made, from the records of its shards.

A record describes the last attempt of a shard and excludes what earlier attempts had saved.
"""

from __future__ import annotations

from dataclasses import dataclass

from datamask.embedding.forward import TOKENS_AT
from datamask.runs.records import read_record
from datamask.runs.run import Run

TOKEN_METRICS = ("tokens", "padded_tokens", "whole_tokens", "cut", *TOKENS_AT.values())
METRICS = ("documents", "seconds", "waited_seconds", *TOKEN_METRICS)
"""Metrics of an attempt: documents embedded, seconds without the loading of the model, seconds in
which the model waited for its input; and numbers of tokens: computed, with padding, of the whole
texts; number of texts that were cut; and tokens at other maximum lengths."""


@dataclass(frozen=True, slots=True)
class EmbeddingSpeed:
    """The speed of embedding: by one worker, and the seconds of all workers together."""

    documents_per_second: float
    seconds: float
    padding: float | None
    """Fraction of the computed tokens that are padding, in [0, 1]; None without tokens."""
    cut: float
    """Fraction of the documents that are longer than the model reads at once, in [0, 1]."""
    lost: float
    """Fraction of the tokens that are not read, in [0, 1]."""
    seconds_at: dict[int, float]
    """Seconds with other maximum lengths, in proportion to the tokens; empty without tokens."""


def embedding_speed(run: Run) -> EmbeddingSpeed | None:
    """Compute the speed of embedding; None without records."""
    if not run.settings.has_vectors:
        return None
    records = [read_record(run, "embeddings", shard) for shard in range(run.num_shards)]
    metrics = [record.metrics for record in records if record is not None]
    sums = {name: sum(of_shard.get(name, 0.0) for of_shard in metrics) for name in METRICS}
    if not sums["documents"] or not sums["seconds"]:
        return None
    seconds, tokens, padded = sums["seconds"], sums["tokens"], sums["padded_tokens"]
    whole = sums["whole_tokens"]
    return EmbeddingSpeed(
        sums["documents"] / seconds,
        seconds,
        1 - tokens / padded if padded else None,
        sums["cut"] / sums["documents"],
        max(0.0, 1 - tokens / whole) if whole else 0.0,
        {at: seconds * sums[name] / tokens for at, name in TOKENS_AT.items() if tokens},
    )
