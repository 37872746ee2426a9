"""Rows of files that are not the source: benchmarks, earlier datasets, texts to embed."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

from datamask.errors import InputError
from datamask.source.opening import naming
from datamask.source.pinned import PlannedFiles
from datamask.source.score_files import LINES_LOOKED_AT, check_columns, json_objects

ROW_SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".txt")
"""Kinds of files: Parquet, JSON lines and plain text."""

ROWS_AT_ONCE = 1024


def read_rows(
    path: str, columns: tuple[str, ...], files: PlannedFiles | None = None
) -> Iterator[dict[str, Any]]:
    """The rows of a file as dictionaries; a plain text file is one, its text in the last column.

    *files*, that the file is one of, note its digest.

    Raises:
        InputError: the file is unreadable, lacks one of the *columns*, or is of another kind.
    """
    check = functools.partial(check_columns, path, columns, "needed is one of")
    files = files or PlannedFiles(path, ROW_SUFFIXES)
    if path.lower().endswith(".parquet"):
        with files.open_parquet(path) as file:
            check(file.schema_arrow.names)
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=list(columns)):
                yield from batch.to_pylist()
    elif path.lower().endswith(ROW_SUFFIXES):
        with naming(path), files.open_text(path) as raw:
            if path.lower().endswith(".txt"):
                yield {columns[-1]: raw.read().decode()}
                return
            rows = (row for _, row in json_objects(raw, path))
            first = list(islice(rows, LINES_LOOKED_AT))
            check(dict.fromkeys(name for row in first for name in row))
            with contextlib.suppress(GeneratorExit):  # the digest needs what is not read, too
                yield from chain(first, rows)
    else:
        raise InputError(f"unknown kind of file; use {', '.join(ROW_SUFFIXES)}", path=path)
