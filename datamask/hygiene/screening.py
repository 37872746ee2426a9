"""Stage `screening`: one pass over the texts for MinHash signatures and benchmark contamination.

The stages `benchmark_ngrams` and `earlier_signatures` prepare the references for comparison. Stage
`quality` decides which documents are dropped, because it sees all shards.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from datamask.config.compute import Compute
from datamask.config.screening import SHORTEST, WORDS
from datamask.hygiene.minhash import sign, sketch
from datamask.hygiene.references import source_columns, texts_of
from datamask.hygiene.words import Words, hash_names, hash_ngrams, split_words
from datamask.runs import schemas
from datamask.runs.in_progress import advance
from datamask.runs.output import write_output
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run
from datamask.source.reading import read_documents
from datamask.source.rows import TEXTS_AT_ONCE


def index_benchmarks(run: Run, compute: Compute) -> None:
    """Write `benchmark_ngrams.parquet`: the words and the n-grams of each item.

    Metrics of the receipt, by set: `texts` counts the items; `short` the items with fewer than
    `SHORTEST` words, which cannot be detected; and `ngrams` the n-grams of all items.
    """
    known = run.settings.quality.contamination
    assert known is not None
    metrics = {item.name: dict.fromkeys(("texts", "short", "ngrams"), 0) for item in known.sets}

    def batches() -> Iterator[pa.RecordBatch]:
        for number, known_set in enumerate(known.sets):
            counts = metrics[known_set.name]
            key = f"benchmark_ngrams:{known_set.name}"
            for of_rows in texts_of(run, key, known_set.path, known_set.columns):
                texts = pa.array(chain.from_iterable(of_rows), pa.large_string())
                items = _items(texts, len(known_set.columns), known.ngram)
                first = counts["texts"]
                counts["texts"] += len(items)
                is_long = pc.greater(pc.list_value_length(items["hashes"]), 0)
                rows = pa.array(np.arange(first, counts["texts"]))
                benchmark = pa.array(np.full(len(items), number, np.int32))
                items = items.add_column(0, "item", rows).add_column(0, "benchmark", benchmark)
                items = items.filter(is_long).cast(schemas.BENCHMARK_NGRAMS)
                counts["short"] += len(is_long) - len(items)
                counts["ngrams"] += len(items["hashes"].combine_chunks().flatten())
                yield from items.to_batches()

    tables = [pa.Table.from_batches(batches(), schemas.BENCHMARK_NGRAMS)]
    write_output(run, "benchmark_ngrams", 0, schemas.BENCHMARK_NGRAMS, tables, metrics)


def _items(texts: pa.Array, columns: int, ngram: int) -> pa.Table:
    """Return words, hashes of n-grams, and if each is inside a column, of items; none if short."""
    in_columns = split_words(texts)
    offsets = in_columns.offsets[::columns]
    words = Words(in_columns.names, in_columns.codes, offsets)
    column = np.repeat(np.arange(len(in_columns.offsets) - 1), np.diff(in_columns.offsets))
    lengths, names = np.diff(offsets), hash_names(words)
    counts = np.maximum(lengths - ngram + 1, lengths >= min(SHORTEST, ngram))
    starts = np.concatenate([[0], np.cumsum(counts)])
    hashes, _ = hash_ngrams(words, ngram, names)
    hashes = hashes[np.repeat(counts > 0, np.maximum(counts, lengths > 0))]
    for length in range(SHORTEST, ngram):  # Documents have n-grams of these lengths too.
        whole = np.flatnonzero(lengths == length)
        of_length, firsts = hash_ngrams(words, length, names)
        hashes[starts[whole]] = of_length[firsts[whole]]
    firsts = np.arange(starts[-1]) + np.repeat(offsets[:-1] - starts[:-1], counts)
    inside = column[firsts] == column[firsts + np.repeat(np.minimum(lengths, ngram), counts) - 1]
    return pa.table(
        {
            "words": pa.LargeListArray.from_arrays(
                offsets, words.names.take(pa.array(words.codes))
            ),
            "hashes": pa.LargeListArray.from_arrays(starts, hashes),
            "inside": pa.LargeListArray.from_arrays(starts, inside),
        }
    )


def sign_earlier(run: Run, compute: Compute) -> None:
    """Write `earlier_signatures.parquet`: ids and signatures of the earlier datasets' documents."""
    near = run.settings.quality.near_duplicates
    assert near is not None
    schema = schemas.EARLIER_SIGNATURES

    def batches() -> Iterator[pa.RecordBatch]:
        columns = source_columns(run.settings.source)
        for path in near.against:
            for rows in texts_of(run, f"earlier_signatures:{path}", path, columns):
                ids, texts = zip(*rows, strict=True)
                signed = _signed(split_words(pa.array(texts, pa.large_string())), WORDS)
                yield pa.RecordBatch.from_arrays([pa.array(ids), *signed], schema=schema)

    write_output(run, "earlier_signatures", 0, schema, batches(), {})


def screen_shard(run: Run, shard: int, compute: Compute) -> Receipt:
    """Write `screening/NNNNN.parquet`: signature and contamination of each document."""
    near, known = run.settings.quality.near_duplicates, run.settings.quality.contamination
    hashes = _by_length(run, known.ngram) if known else {}

    def batches() -> Iterator[pa.RecordBatch]:
        for first, ids, texts in read_documents(run, shard):
            for start in range(0, len(texts), TEXTS_AT_ONCE):
                words = split_words(texts.slice(start, TEXTS_AT_ONCE))
                signed = _signed(words, WORDS if near else None)
                shared = _shared(words, hashes)
                rows = np.arange(first + start, first + min(start + TEXTS_AT_ONCE, len(texts)))
                columns = [ids.slice(start, TEXTS_AT_ONCE), pa.array(rows), *signed, *shared]
                advance(first + start + len(rows), run.shard_rows(shard))
                yield pa.RecordBatch.from_arrays(columns, schema=schemas.SCREENING)

    receipt = write_output(run, "screening", shard, schemas.SCREENING, batches(), {})
    assert receipt.rows == run.shard_rows(shard)
    return receipt


def _signed(words: Words, n: int | None) -> list[pa.Array]:
    """Return the columns of `schemas.SIGNED`; null for a text without words, and without *n*."""
    texts, kinds = len(words.offsets) - 1, schemas.SIGNED.types
    if n is None:
        return [pa.nulls(texts, kind) for kind in kinds]
    signatures = sign(hash_ngrams(words, n))
    is_there = pa.array(np.diff(words.offsets) > 0).buffers()[1]
    numbers = [*np.ascontiguousarray(signatures.view("<u8").T), sketch(signatures)]
    return [
        pa.Array.from_buffers(kind, texts, [is_there, pa.py_buffer(column)])
        for kind, column in zip(kinds, numbers, strict=True)
    ]


def _by_length(run: Run, ngram: int) -> dict[int, npt.NDArray[np.uint64]]:
    """Return the hashes of the benchmarks' n-grams by their number of words, ascending."""
    items = run.read_output("benchmark_ngrams", columns=["words", "hashes"])
    lengths = np.minimum(pc.list_value_length(items["words"]).to_numpy(), ngram)
    hashes = {
        int(length): items["hashes"].filter(pa.array(lengths == length)).combine_chunks().flatten()
        for length in np.unique(lengths)
    }
    return {length: np.unique(of_length.to_numpy()) for length, of_length in hashes.items()}


def _shared(
    words: Words, known: dict[int, npt.NDArray[np.uint64]]
) -> tuple[pa.ListArray, pa.ListArray]:
    """Return the known n-grams of each text, and the first word of each; null without any."""
    texts, names = len(words.offsets) - 1, hash_names(words) if known else None
    hits_of = [(np.zeros(0, np.int64), np.zeros(0, np.uint64), np.zeros(0, np.int64))]
    for length, hashes in known.items():
        ngrams, offsets = hash_ngrams(words, length, names)
        ranks = np.searchsorted(hashes, ngrams)
        hits = np.flatnonzero(ranks < len(hashes))
        hits = hits[hashes[ranks[hits]] == ngrams[hits]]
        texts_of = np.searchsorted(offsets, hits, "right") - 1
        hits_of.append((texts_of, ngrams[hits], hits - offsets[texts_of]))
    texts_of, ngrams, places = map(np.concatenate, zip(*hits_of, strict=True))
    order = np.lexsort((places, ngrams, texts_of))
    texts_of, ngrams, places = texts_of[order], ngrams[order], places[order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = (texts_of[1:] != texts_of[:-1]) | (ngrams[1:] != ngrams[:-1])
    starts = np.searchsorted(texts_of[is_first], np.arange(texts + 1)).astype(np.int32)
    is_none = pa.array(np.diff(starts) == 0)
    lists = (ngrams[is_first], places[is_first])
    shared, shared_at = (pa.ListArray.from_arrays(starts, some, mask=is_none) for some in lists)
    return shared, shared_at
