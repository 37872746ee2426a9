"""Checks that need the rows: absent or repeated ids, and missing scores.

Joins, ties and the published subset need unique ids, and a missing score would stop a run after
hours. Planning therefore checks both before any expensive work. It reads only the columns of ids
and scores and the first vectors of each file; DuckDB groups them out of core. Problems are
collected, not raised, so that they are reported together.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datamask.config.compute import Compute
from datamask.config.inputs import Score
from datamask.config.settings import Settings
from datamask.embedding.vectors import normalise, to_matrix
from datamask.errors import DatamaskError, InputError, gathering
from datamask.source.columns import feature_problem, is_numeric, missing_score, usable
from datamask.source.opening import open_parquet
from datamask.source.reading import invalid_text
from datamask.source.score_files import read_all_scores
from datamask.storage.duckdb_scratch import execute_with, temporary_duckdb

logger = logging.getLogger(__name__)

FIRST_VECTORS = 256
"""Vectors checked per file; the import checks the others."""

_IDS = pa.schema([("id", pa.string()), ("file", pa.int32()), ("row", pa.int64())])
_GIVEN = pa.schema([("id", pa.string()), ("usable", pa.bool_())])


def check_rows(
    root: Path,
    paths: Iterable[str],
    settings: Settings,
    compute: Compute,
    score_files: Collection[str],
) -> list[DatamaskError]:
    """Find unreadable files, absent and repeated ids, and missing scores that are not allowed.

    Args:
        root: the run's folder, which exists; DuckDB spills there.
        paths: the source's files.
        settings: names the columns and the scores.
        compute: DuckDB's memory and threads.
        score_files: names of the scores of kind `file` whose files exist.
    """
    paths = list(dict.fromkeys(paths))
    problems: list[DatamaskError] = []
    with temporary_duckdb(root, compute) as connection:
        rows = _SourceRows(paths, settings, problems)
        _table(connection, "ids", _IDS, rows.batches())
        problems += rows.missing_scores()
        problems += _repeated_ids(connection, paths, settings.source.id_column)
        for score in settings.scores:
            if score.kind == "file" and score.name in score_files:
                problems += _unmatched(connection, paths, score)
    return problems


class _SourceRows:
    """One pass over the columns that are checked.

    `missing` counts, by column, the documents without a score, with the first one's file and row.
    """

    def __init__(self, paths: list[str], settings: Settings, problems: list[DatamaskError]) -> None:
        self.paths, self.settings, self.problems = paths, settings, problems
        self.missing: dict[str, tuple[int, str, int]] = {}

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Ids as text with file and row. A problem ends its file and is kept."""
        for number, path in enumerate(self.paths):
            with gathering(self.problems):
                self._check_vectors(path)
                yield from self._file(number, path)

    def _file(self, number: int, path: str) -> Iterator[pa.RecordBatch]:
        column = self.settings.source.id_column
        scores = {
            score.column
            for score in self.settings.scores
            if score.kind == "column" and score.missing == "error"
        }
        row = 0
        with open_parquet(path) as file:
            # Absent columns and those of other types were reported from the footers.
            scores &= {field.name for field in file.schema_arrow if is_numeric(field.type)}
            names = list(dict.fromkeys([column, *sorted(scores)]))
            for batch in file.iter_batches(batch_size=2**16, columns=names):
                ids = batch.column(column).cast(pa.string())
                place = invalid_text(ids)
                if place is not None:
                    raise InputError(
                        "not valid UTF-8; re-encode it", path=path, row=row + place, column=column
                    )
                absent = pc.fill_null(pc.equal(pc.binary_length(ids), 0), True)
                if pc.any(absent).as_py():
                    place = row + pc.index(absent, True).as_py()
                    problem = "null or empty; give every document an id"
                    raise InputError(problem, path=path, row=place, column=column)
                for name in sorted(scores):
                    self._note_missing(batch.column(name), name, path, row)
                places = pa.array(np.arange(row, row + len(ids), dtype=np.int64))
                files = pa.repeat(pa.scalar(number, pa.int32()), len(ids))
                yield pa.RecordBatch.from_arrays([ids, files, places], schema=_IDS)
                row += len(ids)

    def _note_missing(self, values: pa.Array, name: str, path: str, row: int) -> None:
        lacking = pc.invert(usable(values))
        count = pc.sum(lacking).as_py() or 0
        if count:
            first = (path, row + pc.index(lacking, True).as_py())
            before, *place = self.missing.get(name, (0, *first))
            self.missing[name] = (before + count, *place)

    def _check_vectors(self, path: str) -> None:
        """Check width and values of a file's first vectors, in layout `features`."""
        name, width = self.settings.source.columns.feature_arr, self.settings.embedding.dimension
        if self.settings.source.layout != "features":
            return
        with open_parquet(path) as file:
            kind = file.schema_arrow.field(name).type if name in file.schema_arrow.names else None
            if kind is None or feature_problem(kind, width):
                return  # reported from the footers
            for batch in file.iter_batches(batch_size=FIRST_VECTORS, columns=[name]):
                matrix = to_matrix(batch.column(0), width, path=path, name=name)
                normalise(matrix, path=path, name=name)
                return

    def missing_scores(self) -> Iterator[InputError]:
        """A problem for each score that is a column of the source."""
        for score in self.settings.scores:
            if score.kind == "column" and score.column in self.missing:
                count, path, row = self.missing[score.column]
                yield missing_score(score, count, path, row)


def _table(db: Any, name: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    reader = pa.RecordBatchReader.from_batches(schema, batches)
    execute_with(
        db,
        reader,
        f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT md5_number(id) AS key, * FROM arriving",
    )


def _repeated_ids(connection: Any, paths: list[str], column: str) -> Iterator[InputError]:
    connection.execute(
        "CREATE TEMP TABLE repeated AS SELECT key, count(*) AS n FROM ids GROUP BY key HAVING n > 1"
    ).fetchall()
    total = connection.execute("SELECT count(*) FROM repeated").fetchall()[0][0]
    if not total:
        return
    examples = connection.execute(
        "SELECT id, any_value(n), list_sort(list(DISTINCT file)) FROM ids JOIN repeated USING (key)"
        " GROUP BY id ORDER BY id LIMIT 3"
    ).fetchall()
    shown = "; ".join(
        f"{key!r} {count} times in {', '.join(paths[file] for file in files[:3])}"
        for key, count, files in examples
    )
    yield InputError(
        f"{total} ids are not unique ({shown}); make every id occur once", column=column
    )


def _unmatched(connection: Any, paths: list[str], score: Score) -> Iterator[DatamaskError]:
    """Problems of a score's files, and which documents have no score in them."""
    failures: list[DatamaskError] = []

    def given() -> Iterator[pa.RecordBatch]:
        for keys, values in read_all_scores(score, failures):
            yield pa.RecordBatch.from_arrays([keys, usable(values)], schema=_GIVEN)

    _table(connection, "given", _GIVEN, given())
    if failures:
        yield from failures
        return
    twice = connection.execute(
        "SELECT id, n FROM ids JOIN (SELECT key, count(*) AS n FROM given SEMI JOIN ids USING (key)"
        " GROUP BY key HAVING n > 1) USING (key) ORDER BY id LIMIT 1"
    ).fetchall()
    if twice:
        yield InputError(
            f"ids occur more than once, {twice[0][0]!r} {twice[0][1]} times; keep one score of "
            "each",
            path=score.path,
            column=score.id_column,
        )
        return
    _warn_of_few(connection, score)
    if score.missing != "error":
        return
    lacking = connection.execute(
        "SELECT i.file, i.row, count(*) OVER () FROM ids i LEFT JOIN given g USING (key) "
        "WHERE NOT coalesce(g.usable, false) ORDER BY i.file, i.row LIMIT 1"
    ).fetchall()
    for file, row, count in lacking:
        yield missing_score(score, count, paths[file], row)


def _warn_of_few(connection: Any, score: Score) -> None:
    """Log a warning if most documents have no score in the files, whatever `missing` says."""
    [(found, total)] = connection.execute(
        "SELECT (SELECT count(*) FROM ids SEMI JOIN given USING (key)), count(*) FROM ids"
    ).fetchall()
    if 2 * found < total:
        [(ours, theirs)] = connection.execute(
            "SELECT (SELECT min(id) FROM ids ANTI JOIN given USING (key)), "
            "(SELECT min(id) FROM given ANTI JOIN ids USING (key))"
        ).fetchall()
        logger.warning(
            "score %s: %s has the ids of only %d of %d documents; its ids look like %r, those of "
            "the source like %r",
            *(score.name, score.path, found, total, str(theirs)[:80], str(ours)[:80]),
        )
