"""What documents are held against: texts of benchmarks, and documents of earlier datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from datamask.config.inputs import BenchmarkSet, Source
from datamask.config.settings import Settings
from datamask.errors import InputError
from datamask.runs.run import Run
from datamask.source.columns import is_id, is_text
from datamask.source.footers import digest_files
from datamask.source.opening import PARQUET, list_files, naming, open_parquet, opening
from datamask.source.reading import plain_type
from datamask.source.score_files import LINES_LOOKED_AT, json_objects, open_text

BENCHMARK_SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".txt")

ROWS_AT_ONCE = 1024


def benchmark_digest(one: BenchmarkSet, how: str) -> str:
    """What identifies the files of a benchmark, after a look at their beginnings.

    Args:
        one: the benchmark.
        how: see `source.footers.digest_file`.

    Raises:
        InputError: nothing is there, or a file is unreadable or lacks a column.
    """
    for path in list_files(one.path, BENCHMARK_SUFFIXES):
        next(_rows(path, one), None)
    return digest_files(one.path, how, BENCHMARK_SUFFIXES)


def earlier_digest(path: str, source: Source, how: str) -> str:
    """The same of an earlier dataset, of which the footers are read."""
    folder = earlier_folder(path)
    for name in list_files(folder):
        with open_parquet(name) as file:
            _check_earlier(file.schema_arrow, source, name)
    return digest_files(folder, how, PARQUET)


def reference_digests(settings: Settings) -> Iterator[tuple[str, Callable[[], str]]]:
    """By its key among pinned revisions, what computes the digest of everything referred to."""
    quality, how = settings.quality, settings.plan.digest
    known, near = quality.contamination, quality.near_duplicates
    for one in known.sets if known else ():
        yield f"benchmark_ngrams:{one.name}", partial(benchmark_digest, one, how)
    for path in near.against if near else ():
        yield f"earlier_signatures:{path}", partial(earlier_digest, path, settings.source, how)


def check_unchanged(run: Run, stage: str) -> None:
    """Make sure that a stage reads the files that were planned.

    Raises:
        InputError: a file was changed, added or removed since.
    """
    for key, digest in reference_digests(run.settings):
        of, _, name = key.partition(":")
        if of == stage and digest() != run.pinned_revisions.get(key):
            problem = "not the files of the plan; restore them, or run `datamask plan` again"
            raise InputError(f"{stage} {name}: {problem}")


def benchmark_texts(one: BenchmarkSet) -> Iterator[pa.Array]:
    """The texts of a set, a row's columns joined by spaces; some at a time.

    Raises:
        InputError: a file is unreadable, lacks a column or holds something else than text in it.
    """
    for path in list_files(one.path, BENCHMARK_SUFFIXES):
        texts = (
            " ".join(" ".join(_parts(row.get(name), path, name)) for name in one.columns)
            for row in _rows(path, one)
        )
        while some := list(islice(texts, ROWS_AT_ONCE)):
            yield pa.array(some, pa.large_string())


def _parts(value: Any, path: str, column: str) -> Iterator[str]:
    """The texts and numbers in a value, however deep."""
    if isinstance(value, str | int | float):
        yield str(value)
    elif isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _parts(part, path, column)
    elif value is not None:
        problem = f"{type(value).__name__}, needed text; name another column"
        raise InputError(problem, path=path, column=column)


def _rows(path: str, one: BenchmarkSet) -> Iterator[dict[str, Any]]:
    def check(known: Iterable[str]) -> None:
        for name in one.columns:
            if name not in known:
                problem = f"absent; set columns of benchmark {one.name} to some of: "
                raise InputError(problem + ", ".join(known), path=path, column=name)

    suffix = path.lower().rpartition(".")[2]
    if suffix == "parquet":
        with open_parquet(path) as file:
            check(file.schema_arrow.names)
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=list(one.columns)):
                yield from batch.to_pylist()
    elif suffix == "txt":
        with naming(path), open_text(path) as raw:
            yield {name: raw.read().decode() for name in one.columns[:1]}
    elif suffix in ("jsonl", "ndjson"):
        with naming(path), open_text(path) as raw:
            rows = (row for _, row in json_objects(raw, path))
            first = list(islice(rows, LINES_LOOKED_AT))
            check(dict.fromkeys(name for row in first for name in row))
            yield from first
            yield from rows
    else:
        kinds = ", ".join(BENCHMARK_SUFFIXES)
        raise InputError(f"not a kind of file that is known; use {kinds}", path=path)


def earlier_folder(path: str) -> str:
    """Where the documents of an earlier dataset are: of a run folder, its subset."""
    import fsspec

    with opening(path):
        filesystem, place = fsspec.core.url_to_fs(path)
        is_run = filesystem.exists(f"{place.rstrip('/')}/run.json")
    return f"{path.rstrip('/')}/subset" if is_run else path


def earlier_documents(path: str, source: Source) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Ids as text, and texts, of an earlier dataset; some at a time.

    Raises:
        InputError: a file is unreadable or lacks the source's columns of text and id.
    """
    columns = [source.id_column, source.columns.text]
    for name in list_files(earlier_folder(path)):
        with open_parquet(name) as file:
            _check_earlier(file.schema_arrow, source, name)
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=columns):
                ids, texts = (batch.column(column) for column in columns)
                yield pc.fill_null(ids.cast(pa.string()), ""), texts.cast(pa.large_string())


def _check_earlier(schema: pa.Schema, source: Source, path: str) -> None:
    for column, fits in ((source.id_column, is_id), (source.columns.text, is_text)):
        if column not in schema.names:
            problem = "absent; an earlier dataset needs the source's columns of text and id"
            raise InputError(problem, path=path, column=column)
        kind = plain_type(schema.field(column).type)
        if not fits(kind):
            raise InputError(f"type {kind}, needed text", path=path, column=column)
