"""Stage `cluster_ngrams`: the word n-grams of documents in clusters, which are compared exactly.

Signatures only estimate how similar two documents are. So this stage reads each document of a
cluster again, and writes its n-grams as 32-bit hashes (4 bytes per word). Stage `quality` compares
the n-grams and drops a document only if it satisfies the rule. An n-gram that a text of 1,000
words lacks has the hash of one of its n-grams with a probability of 2⁻²².
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from datamask.config.compute import Compute
from datamask.config.screening import WORDS
from datamask.hygiene.references import source_columns, texts_of
from datamask.hygiene.words import hash_ngrams, split_words
from datamask.runs import schemas
from datamask.runs.in_progress import advance
from datamask.runs.output import write_output
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run
from datamask.runs.stages import Unit
from datamask.source.reading import read_documents
from datamask.source.rows import TEXTS_AT_ONCE

EARLIER = -1
"""Number in place of a shard, for documents of earlier datasets."""

_LOW, _HIGH = np.uint64(2**32 - 1), np.uint64(32)


def units(run: Run) -> list[Unit]:
    """List the units of stage `cluster_ngrams`: one per shard, and one for earlier datasets."""
    near = run.settings.quality.near_duplicates
    names = [f"{shard:05d}" for shard in range(run.num_shards)] if near else []
    names += ["earlier"] if near and near.against else []
    return [Unit(f"cluster_ngrams/{name}", None) for name in names]


def write_ngrams(run: Run, unit: int, compute: Compute) -> Receipt:
    """Write `cluster_ngrams/NNNNN.parquet`: the n-grams of a shard's documents in clusters."""
    shard = unit if unit < run.num_shards else EARLIER
    pairs = range(run.num_units("similar_pairs"))
    for number in pairs:
        run.receipt("similar_pairs", number)
    paths = [str(run.path("similar_pairs", number)) for number in pairs]
    of_shard = [("shard", "=", shard)]
    in_clusters = pa.concat_tables(
        pq.read_table(path, columns=["row"], filters=of_shard, partitioning=None) for path in paths
    )
    members = np.unique(in_clusters["row"].to_numpy())

    def tables() -> Iterator[pa.Table]:
        for first, texts in _earlier(run) if shard == EARLIER else _documents(run, shard):
            for start in range(0, len(texts), TEXTS_AT_ONCE):
                some = texts.slice(start, TEXTS_AT_ONCE)
                ends = np.searchsorted(members, [first + start, first + start + len(some)])
                rows = members[slice(*ends)]
                if len(rows):
                    ngrams = _distinct(some.take(pa.array(rows - first - start)))
                    yield pa.table([pa.array(rows), ngrams], schema=schemas.CLUSTER_NGRAMS)

    return write_output(run, "cluster_ngrams", unit, schemas.CLUSTER_NGRAMS, tables(), {})


def _documents(run: Run, shard: int) -> Iterator[tuple[int, pa.Array]]:
    for first, _, texts in read_documents(run, shard):
        yield first, texts
        advance(first + len(texts), run.shard_rows(shard))


def _earlier(run: Run) -> Iterator[tuple[int, pa.Array]]:
    near, first = run.settings.quality.near_duplicates, 0
    columns = source_columns(run.settings.source)
    for path in near.against if near else ():
        for rows in texts_of(run, f"earlier_signatures:{path}", path, columns):
            yield first, pa.array([text for _, text in rows], pa.large_string())
            first += len(rows)


def _distinct(texts: pa.Array) -> pa.Array:
    """Return the low 32 bits of the hashes of each text's n-grams, distinct and ascending."""
    hashes, offsets = hash_ngrams(split_words(texts), WORDS)
    places = np.repeat(np.arange(len(texts), dtype=np.uint64), np.diff(offsets))
    values = np.unique(places << _HIGH | hashes & _LOW)
    starts = np.searchsorted(values >> _HIGH, np.arange(len(texts) + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(starts, (values & _LOW).astype(np.uint32))


@dataclass(frozen=True, slots=True)
class Overlaps:
    """Exact comparison of the n-grams of documents.

    Args:
        values: distinct and ascending within a document, shape [n-grams].
        offsets: document i has values[offsets[i] : offsets[i + 1]].
        similarity: minimum Jaccard similarity of a document and the one that is kept, in [0, 1].
        rule: with `containment`, the kept document must also have all n-grams of the other.
    """

    values: npt.NDArray[np.uint32]
    offsets: npt.NDArray[np.integer[Any]]
    similarity: float
    rule: Literal["jaccard", "containment"]

    def compare(self, document: int, other: int) -> tuple[bool, float, float]:
        """Return if a document may be dropped for another one, how similar, and how much is held.

        The similarity is Jaccard's; the last number is the fraction of the document's n-grams that
        the other one has.
        """
        ours, theirs = (
            self.values[self.offsets[row] : self.offsets[row + 1]] for row in (document, other)
        )
        places = np.searchsorted(theirs, ours)
        shared = int((theirs[np.minimum(places, len(theirs) - 1)] == ours).sum())
        similarity = shared / (len(ours) + len(theirs) - shared)
        is_copy = similarity >= self.similarity
        if self.rule == "containment":
            is_copy &= shared == len(ours)
        return is_copy, similarity, shared / len(ours)
