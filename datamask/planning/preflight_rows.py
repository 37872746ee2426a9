"""Checks that need the rows: absent or repeated ids, and missing scores.

Joins, ties and the published subset need unique ids, and a missing score would stop a run after
hours. Planning therefore checks both before any expensive work. It reads only the columns of ids,
scores and dumps and the first vectors of each file, several files at once. DuckDB compares 128-bit
hashes of ids out of core; an id itself is read again from its file if a message shows it. Problems
are collected, not raised, so that they are reported together.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from datamask.config.compute import Compute
from datamask.config.settings import Settings
from datamask.embedding.vector_files import PIN as VECTORS_PIN
from datamask.errors import DatamaskError, InputError, gathering, shortened
from datamask.planning.preflight_vectors import check_vectors, missing_vectors
from datamask.quality.counts import COUNTS, problems_of_source
from datamask.quality.kinds import KINDS
from datamask.runs.in_progress import each_in_turn
from datamask.runs.schemas import Piece
from datamask.selection.threshold import name_of
from datamask.source.columns import (
    INEXACT,
    feature_problem,
    first_inexact,
    is_numeric,
    missing_score,
    usable,
    whole_tokens,
)
from datamask.source.completed import batches_of, type_within
from datamask.source.dumps import COUNT_DUMPS, DUMP_NAME, create_dumps, dump_names, dumps_by_shard
from datamask.source.groups import SourceGroups
from datamask.source.long_texts import remedy, rows_at_once, surely_long
from datamask.source.opening import is_remote, naming, open_parquet
from datamask.source.originals import original
from datamask.source.reading import invalid_text, joined
from datamask.storage.duckdb_scratch import ROWS_AT_ONCE, execute, execute_with, temporary_duckdb

logger = logging.getLogger(__name__)

FIRST_VECTORS = 256
"""Number of vectors checked of a remote file; the import checks the others."""

MOST_FILES_AT_ONCE = 1024
"""Number of files whose rows go to DuckDB in one transaction."""

MOST_ID_BYTES = 2**12
"""Stages hold the ids of a shard in memory, and DuckDB returns at most 2 GiB of them at once."""

_Missing = tuple[str, int, str, int]
"""A column, how many documents of a batch lack its score, and the file and row of the first."""

_SCORE, _GROUP = "score:", "group:"
"""Begin the names of columns of scores, and of groups, in the rows of a file."""


def check_rows(
    root: Path,
    pieces: Sequence[Piece],
    settings: Settings,
    compute: Compute,
    columns: Collection[str],
    pinned_revisions: Mapping[str, str],
) -> tuple[list[DatamaskError], list[dict[str, int]]]:
    """Find unreadable files, absent and repeated ids, and missing scores that are not allowed.

    If there are none, also find budgets and limits that all documents of the source cannot meet.
    Returns the problems, and the documents of each shard by dump (`dumps_by_shard`).

    Args:
        root: the run's folder, which exists; DuckDB spills there.
        pieces: the plan.
        settings: names the columns and the scores.
        compute: files read at once (`workers`, at least two); DuckDB's memory and threads.
        columns: names of the source's columns; empty: budget and dumps do not matter.
        pinned_revisions: of scores of kind `file`, the digest of those files that exist.
    """
    rows = _SourceRows(pieces, settings, columns)
    with temporary_duckdb(root, compute) as connection:
        execute(connection, "CREATE TABLE ids (key UHUGEINT, file INTEGER, row BIGINT)")
        execute(connection, COUNTS)
        create_dumps(connection, pieces)
        problems = list(rows.load(connection, max(2, compute.workers)))
        problems += rows.missing_scores()
        problems += _repeated_ids(connection, rows)
        if rows.counted and not problems:
            [(documents,)] = execute(connection, "SELECT count(*) FROM ids")
            problems += problems_of_source(connection, settings, documents)
        if VECTORS_PIN in pinned_revisions and not problems:
            problems += missing_vectors(connection, rows.paths, rows.id_at, settings)
        for score in settings.scores:
            check, planned = KINDS[type(score)].row_problems, pinned_revisions.get(score.pin_key)
            if check and planned:
                problems += check(connection, rows.paths, rows.id_at, score, planned)
        shards = pieces[-1].shard + 1 if rows.has_dumps else 0
        return problems, dumps_by_shard(connection, shards)


class _SourceRows:
    """One pass over the columns that are checked."""

    def __init__(
        self, pieces: Sequence[Piece], settings: Settings, columns: Collection[str]
    ) -> None:
        self.files = {piece.path: piece.digest for piece in pieces}
        self.paths, self.settings = [*self.files], settings
        self.scores = [
            score for score in settings.scores if score.source_column and score.missing == "error"
        ]
        self.missing: list[_Missing] = []
        source, selection = settings.source, settings.selection
        kinds = settings.selection_by_columns.limited
        self.groups = SourceGroups(source, kinds, columns)
        counted = {f"{_GROUP}{name}": name for name in self.groups.columns} if kinds else {}
        counted |= {"tokens": source.columns.token_count} if selection.needs_tokens else {}
        # A missing column is reported from the schema, and a trainer's tokens are counted later.
        can_count = {*counted.values()} <= {*columns} and not settings.counts_for_trainer
        self.counted = counted if can_count else {}
        self.has_dumps = source.columns.dump in columns
        self.read = {"id": source.id_column, **self.counted}
        self.read |= {"dump": source.columns.dump} if self.has_dumps else {}

    def load(self, connection: Any, threads: int) -> Iterator[DatamaskError]:
        """Fill the table `ids`; yield problems in the order of files. A problem ends its file."""
        at_once = min(MOST_FILES_AT_ONCE, len(self.paths) // (8 * threads) + 1)
        statements = ["INSERT INTO ids SELECT md5_number(id), file, row FROM arriving"]
        if self.counted:
            name = name_of(self.settings.selection_by_columns, "arriving")
            counts = f"SELECT {name}, count(*), sum(tokens) FROM arriving GROUP BY 1"
            statements.append(f"INSERT INTO counts {counts}")
        if self.has_dumps:
            statements.append(COUNT_DUMPS)

        def load_files(first: int) -> tuple[list[DatamaskError], list[_Missing]]:
            problems: list[DatamaskError] = []
            missing: list[_Missing] = []
            numbers = range(first, min(first + at_once, len(self.paths)))
            with connection.cursor() as own:
                own.begin()
                # A call for each small file would take most of the time.
                for rows in joined(self._sound(numbers, problems, missing), len, ROWS_AT_ONCE):
                    for statement in statements:
                        execute_with(own, rows, statement)
                own.commit()
            return problems, missing

        groups = range(0, len(self.paths), at_once)
        for problems, missing in each_in_turn(load_files, groups, threads, "groups of files"):
            yield from problems
            self.missing += missing

    def _sound(
        self, numbers: range, problems: list[DatamaskError], missing: list[_Missing]
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of several files for DuckDB; *problems* gets each bad file's first one."""
        for number in numbers:
            with gathering(problems), naming(self.paths[number]):
                row = 0
                for batch in self._read(self.paths[number]):
                    yield self._checked(batch, number, row, missing)
                    row += len(batch)

    def _read(self, path: str) -> Iterator[pa.RecordBatch]:
        """Yield the checked columns of a file, in batches."""
        with open_parquet(path, planned=self.files[path]) as file:
            if self.settings.vector_column and not self.settings.vector_files:
                self._check_vectors(path, file)
            if self.settings.source.layout == "documents":
                self._check_lengths(path, file.metadata)
            # Absent columns, and columns of other types, were reported from the footers.
            wanted = sorted({score.source_column for score in self.scores})
            kinds = {name: type_within(file.schema_arrow, name) for name in wanted}
            scores = [name for name, kind in kinds.items() if kind is None or is_numeric(kind)]
            columns = self.read | {f"{_SCORE}{name}": name for name in scores}
            names = list(dict.fromkeys(columns.values()))
            groups = map(file.metadata.row_group, range(file.num_row_groups))
            size = min((rows_at_once(group, names) for group in groups), default=1)
            for batch in batches_of(file, names, self.settings.source, size=size):
                values = [batch.column(column) for column in columns.values()]
                yield pa.RecordBatch.from_arrays(values, [*columns])

    def id_at(self, file: int, row: int) -> str:
        """Read the id of a row again."""
        path = self.paths[file]
        with open_parquet(path, planned=self.files[path]) as opened:
            source = self.settings.source
            batches = batches_of(opened, [source.id_column], source)
            ids = (value for batch in batches for value in batch.column(0).cast(pa.string()))
            return str(next(islice(ids, row, None)))

    def _checked(
        self, read: pa.RecordBatch, file: int, start: int, missing: list[_Missing]
    ) -> pa.RecordBatch:
        """Turn a batch whose first row is *start* into the columns that DuckDB needs.

        *missing* gets the documents that lack a score.
        """
        path, ids = self.paths[file], read["id"].cast(pa.string())

        id_column = self.settings.source.id_column

        def refuse(problem: str, at: int, column: str = id_column) -> NoReturn:
            raise InputError(problem, path=path, row=start + at, column=column)

        if (first := invalid_text(ids)) is not None:
            refuse("not valid UTF-8; re-encode it", first)
        absent = pc.fill_null(pc.equal(pc.binary_length(ids), 0), True)
        if (first := pc.index(absent, True).as_py()) >= 0:
            refuse("null or empty; give every document an id", first)
        is_long = pc.greater(pc.binary_length(ids), MOST_ID_BYTES)
        if (first := pc.index(is_long, True).as_py()) >= 0:
            refuse(f"an id of more than {MOST_ID_BYTES:,} bytes; give it a shorter one", first)
        columns = {
            "id": ids,
            "file": pa.array(np.full(len(ids), file, np.int32)),
            "row": pa.array(np.arange(start, start + len(ids))),
            **self._counts(read, path, refuse),
        }
        if self.has_dumps:
            # Limits may count dumps as groups; files and groups name them differently.
            columns[DUMP_NAME] = pa.nulls(len(ids), pa.string())
            with contextlib.suppress(pa.ArrowInvalid):  # Stage `scores` names the row.
                columns[DUMP_NAME] = dump_names(read["dump"])
        # This comes last: rows with another fault are not counted.
        for name in filter(lambda name: name.startswith(_SCORE), read.schema.names):
            column = name.removeprefix(_SCORE)
            if (first := first_inexact(read[name])) is not None:
                raise InputError(INEXACT, path=path, row=start + first, column=column)
            lacking = pc.invert(usable(read[name]))
            if count := pc.sum(lacking).as_py():
                first = pc.index(lacking, True).as_py()
                missing.append((column, count, path, start + first))
        return pa.RecordBatch.from_pydict(columns)

    def _check_lengths(self, path: str, footer: pq.FileMetaData) -> None:
        """Refuse texts that are too long by the footer, before a worker takes memory for them."""
        source = self.settings.source
        if source.longer == "refuse" and (rows := surely_long(footer, source)):
            first, last = rows
            where = "" if first == last else f" in one of the rows {first} to {last}"
            problem = f"a text that is too long{where}; {remedy(source)}"
            raise InputError(problem, path=path, row=first, column=source.columns.text)

    def _counts(
        self, read: pa.RecordBatch, path: str, refuse: Callable[[str, int, str], NoReturn]
    ) -> dict[str, pa.Array]:
        """Return groups and tokens of each document as in stage `scores`; unknown tokens are 0."""
        if not self.counted:
            return {}
        groups: dict[str, pa.Array] = {}
        tokens = pa.array(np.zeros(len(read), np.int64))
        if self.groups.kinds:
            columns = {name: read[f"{_GROUP}{name}"] for name in self.groups.columns}
            groups = self.groups.of(pa.RecordBatch.from_pydict(columns), path)
        if "tokens" in self.counted:
            known, at = whole_tokens(read["tokens"])
            if at >= 0:
                column = self.counted["tokens"]
                refuse(f"{read['tokens'][at]} tokens in a document; fix it", at, column)
            tokens = known.fill_null(0)
        return {**groups, "tokens": tokens}

    def _check_vectors(self, path: str, file: pq.ParquetFile) -> None:
        """Check width and values of a file's vectors."""
        name, width = self.settings.vector_column, self.settings.embedding.dimension
        kind = type_within(file.schema_arrow, name)
        if kind is None or feature_problem(kind, width) or not self.settings.has_vectors:
            return  # This was reported from the footers.
        batches = batches_of(file, [name], self.settings.source, size=FIRST_VECTORS)
        columns = (batch.column(0) for batch in islice(batches, 1 if is_remote(path) else None))
        check_vectors(columns, self.settings, path)

    def missing_scores(self) -> Iterator[InputError]:
        """Yield a problem for each score that is a column of the source and must not be missing."""
        for score in self.scores:
            here = [missing for missing in self.missing if missing[0] == score.source_column]
            if here:
                _, _, path, row = here[0]
                yield missing_score(score, sum(count for _, count, _, _ in here), path, row)


def _repeated_ids(connection: Any, rows: _SourceRows) -> Iterator[InputError]:
    execute(
        connection,
        "CREATE TABLE repeated AS SELECT key, count(*) AS n FROM ids GROUP BY key HAVING n > 1",
    )
    total = execute(connection, "SELECT count(*) FROM repeated")[0][0]
    if not total:
        return
    examples = execute(
        connection,
        "SELECT any_value(n), list_sort(list(DISTINCT file)), min(file::HUGEINT << 64 | row) AS "
        "first FROM ids JOIN repeated USING (key) GROUP BY key ORDER BY first LIMIT 3",
    )
    shown = "; ".join(
        f"{shortened(rows.id_at(*divmod(first, 2**64)))} {count:,} times in "
        + ", ".join(original(rows.paths[file]) for file in files[:3])
        for count, files, first in examples
    )
    yield InputError(
        f"{total:,} ids are not unique ({shown}); make every id occur once",
        column=rows.settings.source.id_column,
    )
