"""Check vectors of the user's own before any work: each document has one that can be used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from datamask.config.settings import Settings
from datamask.embedding.vector_files import load_places, open_files, unit_rows
from datamask.errors import DatamaskError, InputError, gathering, shortened
from datamask.source.opening import is_remote, naming
from datamask.storage.duckdb_scratch import execute


def check_vectors(columns: Iterable[pa.Array], settings: Settings, path: str) -> None:
    """Check the vectors of a file from its first row on. Errors are as in `unit_rows`."""
    first = 0
    for column in columns:
        unit_rows(column, settings, path, np.arange(first, first + len(column)))
        first += len(column)


def missing_vectors(
    connection: Any, paths: Sequence[str], id_at: Callable[[int, int], str], settings: Settings
) -> Iterator[DatamaskError]:
    """Yield the problems of files of vectors, whose ids are compared with table `ids`.

    *paths* are the source's files, and *id_at* reads the id of a row of one.
    """
    path, id_column = settings.vector_files, settings.embedding.id_column
    problems: list[DatamaskError] = []
    files = open_files(settings)
    for file in files:
        if not is_remote(file.path):
            with gathering(problems), naming(file.path):
                check_vectors(file.read(settings.vector_column), settings, file.path)
    with gathering(problems):
        load_places(connection, files, id_column)
    if problems:
        yield from problems
        return
    twice = "(SELECT key, count(*) AS n FROM given GROUP BY key HAVING n > 1)"
    query = f"SELECT ids.file, ids.row, n FROM ids JOIN {twice} USING (key) ORDER BY ALL LIMIT 1"
    for file, row, count in execute(connection, query):
        problem = f"ids occur more than once, {shortened(id_at(file, row))} {count} times; keep one"
        yield InputError(problem, path=path, column=id_column)
    lacking = "FROM ids ANTI JOIN given USING (key)"
    [(count,)] = execute(connection, f"SELECT count(*) {lacking}")
    for file, row in execute(connection, f"SELECT file, row {lacking} ORDER BY ALL LIMIT 1"):
        problem = f"{count} documents have no vector in {path}, such as "
        problem += f"{shortened(id_at(file, row))}; add them, or drop the rows"
        yield InputError(problem, path=paths[file], row=row)
