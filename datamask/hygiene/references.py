"""References of screening: the texts of benchmarks, and the documents of earlier datasets."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

from datamask.config.inputs import Source
from datamask.config.settings import Settings
from datamask.runs.run import Run
from datamask.source.opening import PlannedFiles, opening
from datamask.source.rows import ROW_SUFFIXES, TEXTS_AT_ONCE, read_rows
from datamask.storage.clients import file_system


def references(settings: Settings) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield key in `pinned_revisions`, path and columns of each benchmark and earlier dataset."""
    known, near = settings.quality.contamination, settings.quality.near_duplicates
    for known_set in known.sets if known else ():
        yield f"benchmark_ngrams:{known_set.name}", known_set.path, known_set.columns
    for path in near.against if near else ():
        yield f"earlier_signatures:{path}", path, source_columns(settings.source)
    for held in settings.evaluation.sets:
        yield f"held_out:{held.name}", held.path, held.columns


def reference_digest(path: str, columns: tuple[str, ...]) -> str:
    """Return a digest of the files of a reference; their first rows are checked.

    Raises:
        InputError: there are no files, or a file is unreadable or lacks one of the *columns*.
    """
    files = _files_at(path)
    for name in files.names:
        next(read_rows(name, columns, files), None)
    return files.digest()


def texts_of(run: Run, key: str, path: str, columns: tuple[str, ...]) -> Iterator[list[list[str]]]:
    """Yield batches of rows of a reference: a text for each column.

    *key* names the digest of its files among the run's pinned revisions. Errors are as in
    `first_rows`.
    """
    rows = first_rows(path, columns, None, run.pinned_revisions[key])
    while some := list(islice(rows, TEXTS_AT_ONCE)):
        yield [[" ".join(_texts(row.get(name))) for name in columns] for row in some]


def first_rows(
    path: str, columns: tuple[str, ...], most: int | None, planned: str | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the first *most* rows, or all, of some files; *planned* is their digest, if known.

    Raises:
        InputError: a file was changed, added or removed since planning; and as in `read_rows`.
    """
    files = _files_at(path)
    with files.compared(planned):
        readers = (read_rows(name, columns, files) for name in files.names)
        yield from islice(chain.from_iterable(readers), most)


def source_columns(source: Source) -> tuple[str, ...]:
    """Name the columns of an earlier dataset that are read: id and text, as in the source."""
    return source.id_column, source.columns.text


def _files_at(path: str) -> PlannedFiles:
    """List the files at a path; at a run's folder, the files of its subset."""
    with opening(path):
        filesystem, name = file_system(path)
        is_run = filesystem.exists(f"{name.rstrip('/')}/run.json")
    return PlannedFiles(f"{path.rstrip('/')}/subset" if is_run else path, ROW_SUFFIXES)


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts and numbers in a nested value, as text."""
    if isinstance(value, list | dict):
        parts = value.values() if isinstance(value, dict) else value
        yield from chain.from_iterable(map(_texts, parts))
    elif value is not None:
        yield str(value)
