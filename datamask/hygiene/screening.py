"""Stage `screening`: each text once, for near-duplicates and for contamination by benchmarks.

The two stages before it make what it needs of benchmarks, and signatures of earlier datasets. What
follows for a document is decided in stage `quality`, where all shards meet.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from datamask.config.compute import Compute
from datamask.hygiene.minhash import sign
from datamask.hygiene.references import benchmark_texts, check_unchanged, earlier_documents
from datamask.hygiene.words import Words, hash_ngrams, split_words
from datamask.runs import schemas
from datamask.runs.files import read_columns, write_parquet
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run
from datamask.source.opening import naming
from datamask.source.reading import read_shard

logger = logging.getLogger(__name__)

TEXTS_AT_ONCE = 1024

MOST_SHOWN = 1000
"""Characters of a shared n-gram that are kept; words may be of any length."""


def index_benchmarks(run: Run, compute: Compute) -> None:
    """Write `benchmark_ngrams.parquet`.

    The receipt's figures, by set: `texts`, `short` (of fewer words than an n-gram has, which cannot
    be found) and `ngrams` that no set before it has.

    Raises:
        InputError: a set is unreadable, or not as planned.
    """
    known = run.settings.quality.contamination
    assert known is not None
    check_unchanged(run, "benchmark_ngrams")
    hashes, sets = np.zeros(0, np.uint64), np.zeros(0, np.int32)
    metrics: dict[str, Any] = {}
    for number, one in enumerate(known.sets):
        texts = short = 0
        parts = [np.zeros(0, np.uint64)]
        for some in benchmark_texts(one):
            words = split_words(some)
            ngrams = hash_ngrams(words, known.ngram)
            is_short = np.diff(words.offsets) < known.ngram
            texts, short = texts + len(some), short + int(is_short.sum())
            parts.append(ngrams.hashes[np.repeat(~is_short, np.diff(ngrams.offsets))])
        found = np.setdiff1d(np.concatenate(parts), hashes)
        hashes = np.concatenate([hashes, found])
        sets = np.concatenate([sets, np.full(len(found), number, np.int32)])
        metrics[one.name] = {"texts": texts, "short": short, "ngrams": len(found)}
        if short:
            logger.warning(
                "benchmark %s: %d of %d texts have fewer than %d words and cannot be found",
                *(one.name, short, texts, known.ngram),
            )
    order = np.argsort(hashes)
    schema = schemas.BENCHMARK_NGRAMS
    table = pa.table({"hash": hashes[order], "set": sets[order]}, schema=schema)
    _write_one(run, "benchmark_ngrams", schema, iter([table]), metrics)


def sign_earlier(run: Run, compute: Compute) -> None:
    """Write `earlier_signatures.parquet`.

    Raises:
        InputError: an earlier dataset is unreadable, or not as planned.
    """
    near = run.settings.quality.near_duplicates
    assert near is not None
    check_unchanged(run, "earlier_signatures")
    schema = schemas.EARLIER_SIGNATURES

    def batches() -> Iterator[pa.RecordBatch]:
        for path in near.against:
            for ids, texts in earlier_documents(path, run.settings.source):
                signatures = _signatures(split_words(texts), near.ngram)
                yield pa.RecordBatch.from_arrays([ids, signatures], schema=schema)

    _write_one(run, "earlier_signatures", schema, batches(), {})


def _write_one(
    run: Run, stage: str, schema: pa.Schema, batches: Iterator[Any], metrics: dict[str, Any]
) -> None:
    write_parquet(
        run.local_path(stage),
        schema,
        batches,
        lambda rows: run.make_receipt(stage, 0, rows, metrics),
        storage=run.storage,
    )


def screen_shard(run: Run, shard: int, compute: Compute) -> Receipt:
    """Write `screening/NNNNN.parquet`.

    Raises:
        InputError: the source cannot be read.
    """
    source, quality = run.settings.source, run.settings.quality
    near, known = quality.near_duplicates, quality.contamination
    names = [source.id_column, source.columns.text]
    schema = schemas.SCREENING
    benchmarks = _Benchmarks(run) if known is not None else None

    def batches() -> Iterator[pa.RecordBatch]:
        row = 0
        for batch in read_shard(run, shard, names):
            for start in range(0, batch.num_rows, TEXTS_AT_ONCE):
                some = batch.slice(start, TEXTS_AT_ONCE)
                with naming(run.shard_pieces[shard][0].path, shard):
                    ids, texts = (some.column(name) for name in names)
                    words = split_words(texts.cast(pa.large_string()))
                    ids = ids.cast(pa.string())
                nothing = pa.nulls(some.num_rows, schema.field("signature").type)
                found = pa.array(range(row, row + some.num_rows), pa.int64())
                signatures = _signatures(words, near.ngram) if near else nothing
                hits = benchmarks.find(words) if benchmarks else _no_hits(some.num_rows)
                yield pa.RecordBatch.from_arrays([ids, found, signatures, *hits], schema=schema)
                row += some.num_rows

    receipt = write_parquet(
        run.local_path("screening", shard),
        schema,
        batches(),
        lambda rows: run.make_receipt("screening", shard, rows),
        storage=run.storage,
    )
    assert receipt is not None and receipt.rows == run.shard_rows(shard)
    return receipt


def _signatures(words: Words, n: int) -> pa.Array:
    """The signature of each text as bytes; null for a text without words."""
    signatures = sign(hash_ngrams(words, n))
    is_there = pa.array(np.diff(words.offsets) > 0)
    kind = schemas.SCREENING.field("signature").type
    buffers = [is_there.buffers()[1], pa.py_buffer(signatures.tobytes())]
    return pa.FixedSizeBinaryArray.from_buffers(kind, len(is_there), buffers)


def _no_hits(texts: int) -> list[pa.Array]:
    return [pa.nulls(texts, field.type) for field in schemas.CONTAMINATION]


class _Benchmarks:
    """The n-grams of all sets, sorted by hash."""

    def __init__(self, run: Run) -> None:
        known = run.settings.quality.contamination
        assert known is not None
        self.ngram = known.ngram
        self.names = [one.name for one in known.sets]
        table = read_columns(run.path("benchmark_ngrams"))
        self.hashes: npt.NDArray[np.uint64] = table["hash"].to_numpy()
        self.sets: npt.NDArray[np.int32] = table["set"].to_numpy()

    def find(self, words: Words) -> list[pa.Array]:
        """By text: the set, the place and the words of its first n-gram that a set has."""
        ngrams = hash_ngrams(words, self.ngram)
        if not len(self.hashes) or not len(ngrams.hashes):
            return _no_hits(len(words.offsets) - 1)
        places = np.searchsorted(self.hashes, ngrams.hashes)
        places[places == len(self.hashes)] = 0
        hits = np.flatnonzero(self.hashes[places] == ngrams.hashes)
        texts = np.searchsorted(ngrams.offsets, hits, side="right") - 1
        texts, first = np.unique(texts, return_index=True)
        found: list[list[Any]] = [[None] * (len(words.offsets) - 1) for _ in range(3)]
        for text, hit in zip(texts.tolist(), hits[first].tolist(), strict=True):
            start = int(ngrams.firsts[hit])
            found[0][text] = self.names[self.sets[places[hit]]]
            found[1][text] = start - int(words.offsets[text])
            found[2][text] = words.text(start, self.ngram)[:MOST_SHOWN]
        kinds = [field.type for field in schemas.CONTAMINATION]
        return [pa.array(values, kind) for values, kind in zip(found, kinds, strict=True)]
