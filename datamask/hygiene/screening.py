"""Stage `screening`: one pass over the texts for MinHash signatures and benchmark contamination.

The stages `benchmark_ngrams` and `earlier_signatures` prepare what the texts are compared with.
Stage `quality` decides which documents are dropped, because it sees all shards.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from datamask.config.compute import Compute
from datamask.config.inputs import Contamination
from datamask.hygiene.minhash import sign, sketch
from datamask.hygiene.references import benchmark_texts, earlier_documents
from datamask.hygiene.words import Words, hash_ngrams, split_words
from datamask.runs import schemas
from datamask.runs.files import read_columns
from datamask.runs.in_progress import advance
from datamask.runs.output import write_output
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run
from datamask.source.reading import check_text, read_shard

TEXTS_AT_ONCE = 1024

MOST_SHOWN = 1000
"""Maximum number of characters recorded of a shared n-gram; words can have any length."""


def index_benchmarks(run: Run, compute: Compute) -> None:
    """Write `benchmark_ngrams.parquet`: the hash of each n-gram, and the first set that has it.

    Metrics of the receipt, by set: `texts`; `short`, the texts with fewer words than an n-gram,
    which cannot be detected; and `ngrams`, without those of earlier sets.

    Raises:
        InputError: a set is unreadable, or has changed since planning.
    """
    known = run.settings.quality.contamination
    assert known is not None
    hashes, sets = np.zeros(0, np.uint64), np.zeros(0, np.int32)
    metrics: dict[str, Any] = {}
    for number, one in enumerate(known.sets):
        texts = short = 0
        parts = [hashes[:0]]
        for some in benchmark_texts(run, one):
            words = split_words(some)
            ngrams, offsets = hash_ngrams(words, known.ngram)
            is_short = np.diff(words.offsets) < known.ngram
            texts, short = texts + len(some), short + int(is_short.sum())
            parts.append(ngrams[np.repeat(~is_short, np.diff(offsets))])
        found = np.setdiff1d(np.concatenate(parts), hashes)
        hashes = np.concatenate([hashes, found])
        sets = np.concatenate([sets, np.full(len(found), number, np.int32)])
        metrics[one.name] = {"texts": texts, "short": short, "ngrams": len(found)}
    order = np.argsort(hashes)
    table = pa.table({"hash": hashes[order], "set": sets[order]}, schema=schemas.BENCHMARK_NGRAMS)
    write_output(run, "benchmark_ngrams", 0, table.schema, [table], metrics)


def sign_earlier(run: Run, compute: Compute) -> None:
    """Write `earlier_signatures.parquet`: ids and signatures of the earlier datasets' documents.

    Raises:
        InputError: an earlier dataset is unreadable, or has changed since planning.
    """
    near = run.settings.quality.near_duplicates
    assert near is not None
    schema = schemas.EARLIER_SIGNATURES

    def batches() -> Iterator[pa.RecordBatch]:
        for path in near.against:
            for ids, texts in earlier_documents(run, path):
                columns = _signed(split_words(texts), near.ngram)
                yield pa.RecordBatch.from_arrays([ids, *columns], schema=schema)

    write_output(run, "earlier_signatures", 0, schema, batches(), {})


def screen_shard(run: Run, shard: int, compute: Compute) -> Receipt:
    """Write `screening/NNNNN.parquet`: signature and contamination of each document.

    Raises:
        InputError: the source cannot be read.
    """
    source, quality = run.settings.source, run.settings.quality
    near, known = quality.near_duplicates, quality.contamination
    benchmarks = read_columns(run.path("benchmark_ngrams")).columns if known else ()
    hashes_and_sets = [column.to_numpy() for column in benchmarks]
    columns = [source.id_column, source.columns.text]

    def batches() -> Iterator[pa.RecordBatch]:
        done = 0
        for batch in read_shard(run, shard, columns):
            for start in range(0, batch.num_rows, TEXTS_AT_ONCE):
                ids, texts = batch.slice(start, TEXTS_AT_ONCE)
                texts = texts.cast(pa.large_string())
                check_text(run, shard, done, texts, source.columns.text)
                words = split_words(texts)
                found: list[dict[str, Any]] = [{} for _ in texts]
                for text, hit in _shared(words, known, *hashes_and_sets) if known else ():
                    found[text] = hit
                rows = pa.array(np.arange(done, done + len(texts)))
                signed = _signed(words, near.ngram if near else None)
                evidence = pa.RecordBatch.from_pylist(found, schema=schemas.CONTAMINATION)
                done += len(texts)
                advance(done, run.shard_rows(shard))
                yield pa.RecordBatch.from_arrays(
                    [ids.cast(pa.string()), rows, *signed, *evidence], schema=schemas.SCREENING
                )

    receipt = write_output(run, "screening", shard, schemas.SCREENING, batches(), {})
    assert receipt.rows == run.shard_rows(shard)
    return receipt


def _signed(words: Words, n: int | None) -> list[pa.Array]:
    """The columns of `schemas.SIGNED`; null for a text without words, and without *n*."""
    texts, kinds = len(words.offsets) - 1, schemas.SIGNED.types
    if n is None:
        return [pa.nulls(texts, kind) for kind in kinds]
    signatures = sign(hash_ngrams(words, n))
    is_there = pa.array(np.diff(words.offsets) > 0).buffers()[1]
    numbers = [*np.ascontiguousarray(signatures.view("<u8").T), sketch(signatures)]
    return [
        pa.Array.from_buffers(kind, texts, [is_there, pa.py_buffer(one)])
        for kind, one in zip(kinds, numbers, strict=True)
    ]


def _shared(
    words: Words, known: Contamination, hashes: npt.NDArray[np.uint64], sets: npt.NDArray[np.int32]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Index and `schemas.CONTAMINATION` of each text that shares an n-gram, for its first.

    *hashes* and *sets* are those of `schemas.BENCHMARK_NGRAMS`.
    """
    ngrams, offsets = hash_ngrams(words, known.ngram)
    places = np.searchsorted(hashes, ngrams)
    inside = np.flatnonzero(places < len(hashes))
    hits = inside[hashes[places[inside]] == ngrams[inside]]
    texts, first = np.unique(np.searchsorted(offsets, hits, "right") - 1, return_index=True)
    for text, hit in zip(texts.tolist(), hits[first].tolist(), strict=True):
        place = int(hit - offsets[text])
        found = (
            known.sets[sets[places[hit]]].name,
            place,
            words.text(int(words.offsets[text]) + place, known.ngram)[:MOST_SHOWN],
        )
        yield text, dict(zip(schemas.CONTAMINATION.names, found, strict=True))
