"""Read rows of files that are not the source: scores, labels, benchmarks, earlier datasets, texts.

Ids are text in every kind of file, as written there; their type is never inferred.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import json
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from contextvars import copy_context
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, AnyStr

import pyarrow as pa
import pyarrow.csv
import pyarrow.json

from datamask.config.scores import ExamplesScore, FileScore
from datamask.errors import DatamaskError, InputError, gathering, one_line, together
from datamask.runs.in_progress import advance
from datamask.source.columns import INEXACT, first_inexact, is_id, is_numeric
from datamask.source.opening import SCORE_SUFFIXES, PlannedFiles, naming, open_text

logger = logging.getLogger(__name__)

JoinedScore = FileScore | ExamplesScore
"""A score whose files have ids and numbers."""

ROW_SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".txt")
"""Kinds of files: Parquet, JSON lines and plain text."""

TEXTS_AT_ONCE = 1024

ROWS_AT_ONCE = 2**16
"""Lines of JSON that are read together if Arrow cannot read them."""

RECORD_BYTES = 2**27
"""Maximum bytes of a line of JSON or CSV."""

CSV_BLOCK = 2**25
"""Bytes of a CSV file that are parsed together; a row has at most as many."""

TOO_LARGE = "straddling object straddles two block boundaries"
"""Arrow's message about a row or line that does not fit into two blocks."""

LINES_LOOKED_AT = 1000
"""Lines of a JSON file, from the first, in which a column must occur."""

NOT_A_PAIR = "surrogate pair in string is invalid"
"""Arrow's message about half of a pair of surrogates in JSON."""

_HIGH, _LOW = rb"u[dD][89abAB][0-9a-fA-F]{2}", rb"u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = re.compile(rb"\\(?:%b\\%b|(%b|%b)|.)" % (_HIGH, _LOW, _HIGH, _LOW), re.DOTALL)
"""An escape of JSON; its group is half of a pair of surrogates, which is no character."""


def read_all_scores(
    score: FileScore, failures: list[DatamaskError], planned: str
) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Yield ids and scores of all files of a score, as `read_scores`; *failures* gets the errors.

    DuckDB would replace the type of an error raised while it reads. *planned* is the digest of the
    files when the run was planned.
    """
    context = copy_context()  # DuckDB reads in a thread of its own.

    def batches() -> Iterator[tuple[pa.Array, pa.Array]]:
        rows = 0
        problems: list[DatamaskError] = []
        with gathering(failures):
            files = PlannedFiles(score.path)
            with files.compared(planned):
                for number, path in enumerate(files.names):
                    with gathering(problems):
                        for keys, values in read_scores(path, score, files):
                            rows += len(keys)
                            yield keys, values
                            read = f", {rows:,} rows of {score.name}"
                            context.run(advance, number, len(files.names), "score files", read)
                if problems:
                    raise together(problems)

    return batches()


def read_scores(
    path: str, score: JoinedScore, files: PlannedFiles | None = None
) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Yield ids as text and scores as float64 of one file, in batches; *files* record its digest.

    Raises:
        InputError: the file is unreadable, lacks a column, or a column has another type.
    """
    refuse, row = functools.partial(InputError, path=path), 0
    try:
        for batch in _batches(path, score, files or PlannedFiles(path)):
            value, keys = batch.column(score.column), batch.column(score.id_column)
            if not is_numeric(value.type):
                problem = f"type {value.type}, needed a number; fix it, or name another column"
                raise refuse(problem, column=score.column)
            if (first := first_inexact(value)) is not None:
                raise refuse(INEXACT, row=row + first, column=score.column)
            if not is_id(keys.type):
                problem = f"type {keys.type}, needed text or integer; write the ids as text"
                raise refuse(problem, column=score.id_column)
            keys = keys.cast(pa.string())
            keys.validate(full=True)  # Arrow does not check the bytes of JSON and Parquet.
            yield keys, value.cast(pa.float64(), safe=False)
            row += len(keys)
    except (pa.ArrowException, UnicodeError, OverflowError, csv.Error) as error:
        what = f"ids ({score.id_column}) and numbers ({score.column})"
        raise refuse(f"cannot be read as {what}: {one_line(error)}; fix the file") from None


def _batches(path: str, score: JoinedScore, files: PlannedFiles) -> Iterator[pa.RecordBatch]:
    names = [score.id_column, score.column]
    remedy = f"set column and id_column of score {score.name} to two of"
    check = functools.partial(check_columns, path, names, remedy)
    if path.lower().endswith(".parquet"):
        with files.open_parquet(path) as file:
            check(file.schema_arrow.names)
            yield from file.iter_batches(columns=names)
    elif path.lower().endswith(".csv"):
        # Arrow names the row of a byte that is not UTF-8, and refuses an empty file.
        wrap = functools.partial(io.TextIOWrapper, errors="replace", newline="")
        with open_text(path) as raw, wrap(raw, "utf-8-sig") as text:
            for header in islice(csv.reader(bounded_lines(text, path)), 1):
                check(header)
        yield from _csv_batches(path, score, files)
    elif path.lower().endswith(SCORE_SUFFIXES):
        with open_text(path) as raw:
            rows = islice(json_objects(raw, path), LINES_LOOKED_AT)
            check(dict.fromkeys(name for _, row in rows for name in row))
        yield from _json_batches(path, score, files)
    else:
        raise InputError(f"unknown kind of file; use {', '.join(SCORE_SUFFIXES)}", path=path)


def _csv_batches(path: str, score: JoinedScore, files: PlannedFiles) -> Iterator[pa.RecordBatch]:
    # Ids are read as text: a number would lose its leading zeros.
    types = {score.id_column: pa.string(), score.column: pa.float64()}
    convert = pa.csv.ConvertOptions(column_types=types, include_columns=[*types])
    parse = pa.csv.ParseOptions(newlines_in_values=True)
    # Arrow names the row of a fault only if it reads with one thread.
    read = pa.csv.ReadOptions(use_threads=False, block_size=CSV_BLOCK)
    try:
        with files.open_text(path) as raw, pa.csv.open_csv(raw, read, parse, convert) as reader:
            yield from reader
    except pa.ArrowInvalid as error:
        if TOO_LARGE not in str(error):
            raise
        problem = f"a row is larger than {CSV_BLOCK >> 20} MiB; check that its quotes are closed"
        raise InputError(problem, path=path) from None


def check_columns(path: str, names: Iterable[str], remedy: str, known: Iterable[str]) -> None:
    """Refuse a file unless each of *names* occurs once in *known*, the names of its columns.

    The message has the *remedy*, and after it all names of columns.
    """
    known = list(known)
    for name in names:
        if known.count(name) != 1:
            twice = "occurs more than once; give every column its own name"
            absent = f"absent; {remedy}: {', '.join(known)}"
            raise InputError(twice if name in known else absent, path=path, column=name)


def _json_batches(path: str, score: JoinedScore, files: PlannedFiles) -> Iterator[pa.RecordBatch]:
    """Read lines of JSON by fast Arrow until an id is not a string or a line is long."""
    schema = pa.schema([(score.id_column, pa.string()), (score.column, pa.float64())])
    parsing = pa.json.ParseOptions(schema, unexpected_field_behavior="ignore")
    done = 0
    try:
        with files.open_text(path) as raw:
            for batch in pa.json.open_json(raw, parse_options=parsing):
                yield batch
                done += batch.num_rows
        return
    except pa.ArrowInvalid as error:
        if not any(
            reason in str(error) for reason in ("from string to number", TOO_LARGE, NOT_A_PAIR)
        ):
            raise
    with files.open_text(path) as raw:
        rest = islice(json_objects(raw, path), done, None)
        while rows := list(islice(rest, ROWS_AT_ONCE)):
            ids = _column(rows, score.id_column, str, path)
            values = _column(rows, score.column, float, path)
            yield pa.RecordBatch.from_arrays([ids, values], schema=schema)


def _column(
    rows: list[tuple[int, dict[str, Any]]], name: str, kind: type[str] | type[float], path: str
) -> pa.Array:
    """Make one column of some objects: whole numbers become text as ids, and floats as scores."""
    values: list[str | float | None] = []
    for number, row in rows:
        value = row.get(name)
        if not isinstance(value, int | kind | None) or isinstance(value, bool):
            needed = "text or a whole number" if kind is str else "a number"
            problem = f"{value!r}, needed {needed}; correct it"
            raise InputError(problem, path=path, line=number + 1, column=name)
        values.append(None if value is None else kind(value))
    return pa.array(values, pa.string() if kind is str else pa.float64())


def bounded_lines(file: IO[AnyStr], path: str) -> Iterator[AnyStr]:
    """Yield the lines of a file; a kilobyte of a compressed file may be a line of a gigabyte.

    Raises:
        InputError: a line is longer than `RECORD_BYTES` bytes or characters.
    """
    number = 0
    while line := file.readline(RECORD_BYTES + 1):
        number += 1
        if len(line) > RECORD_BYTES:
            problem = f"longer than {RECORD_BYTES >> 20} MiB; cut the line, or leave it out"
            raise InputError(problem, path=path, line=number)
        yield line


def repaired_line(line: bytes) -> tuple[bytes, int]:
    """Replace escapes of lone surrogates in a line of JSON by U+FFFD; return line and number."""
    if b"\\ud" not in line and b"\\uD" not in line:
        return line, 0
    count = sum(1 for escape in _ESCAPE.finditer(line) if escape[1])
    whole = _ESCAPE.sub(lambda escape: b"\\ufffd" if escape[1] else escape[0], line)
    return whole, count


def repair_lines(file: IO[bytes], path: str, copy: Path) -> int:
    """Write lines of JSON to *copy* without lone surrogates (`repaired_line`); return their number.

    Raises:
        InputError: a line is too long.
    """
    count = 0
    with copy.open("wb") as repaired:
        for line in bounded_lines(file, path):
            whole, lone = repaired_line(line)
            repaired.write(whole)
            count += lone
    return count


def json_objects(file: IO[bytes], path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a file of JSON lines, each with the number of its line (from 0).

    Lone surrogates become U+FFFD, as in the source; a warning has their number.
    """
    lone = 0
    for number, line in enumerate(bounded_lines(file, path)):
        if not line.strip():
            continue
        whole, count = repaired_line(line)
        lone += count
        try:
            content = json.loads(whole.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            problem = f"not JSON ({error}); correct the line"
            raise InputError(problem, path=path, line=number + 1) from None
        if not isinstance(content, dict):
            raise InputError("not a JSON object; correct the line", path=path, line=number + 1)
        yield number, content
    if lone:
        logger.warning("%s: %d lone surrogates are read as U+FFFD", path, lone)


def check_lines(file: IO[bytes], path: str) -> None:
    """Refuse the first line of JSON that is too long or too deep; other bad lines pass here.

    Raises:
        InputError: there is such a line.
    """
    for number, line in enumerate(bounded_lines(file, path)):
        try:
            json.loads(line)
        except ValueError:
            continue
        except RecursionError:
            problem = "values are nested too deep; leave the line out"
            raise InputError(problem, path=path, line=number + 1) from None


def first_bad_line(file: IO[bytes], path: str, count: int) -> InputError:
    """Return the error about the first of *count* lines that are not objects."""
    more = f"{count:,} lines are not JSON objects; source.most_bad_lines leaves out so many"
    try:
        for _ in json_objects(file, path):
            pass
    except InputError as error:
        return InputError(f"{one_line(error)} ({more})")
    return InputError(more, path=path)


def repeated_key(file: IO[bytes], path: str) -> InputError:
    """Return the error about the first key that occurs twice in an object."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(twice := dict(pairs)) < len(pairs):
            names = [key for key, _ in pairs]
            raise KeyError(next(key for key in twice if names.count(key) > 1))
        return twice

    for row, line in enumerate(bounded_lines(file, path)):
        with contextlib.suppress(ValueError, RecursionError):
            try:
                json.loads(line.decode("utf-8-sig"), object_pairs_hook=unique)
            except KeyError as error:
                problem = f"key {error} occurs twice in an object; keep one"
                return InputError(problem, path=path, line=row + 1)
    return InputError("a key occurs twice in an object; keep one", path=path)


def read_rows(
    path: str, columns: tuple[str, ...], files: PlannedFiles, more: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file as dictionaries; plain text is one row, its text in the last column.

    *files*, which include the file, record its digest. Columns *more* are read where it has them.

    Raises:
        InputError: the file is unreadable, lacks a column, or has another kind.
    """
    check = functools.partial(check_columns, path, columns, "needed is one of")
    if path.lower().endswith(".parquet"):
        with files.open_parquet(path) as file:
            check(names := file.schema_arrow.names)
            read = [*columns, *(name for name in more if names.count(name) == 1)]
            for batch in file.iter_batches(TEXTS_AT_ONCE, columns=[*dict.fromkeys(read)]):
                yield from batch.to_pylist()
    elif path.lower().endswith(ROW_SUFFIXES):
        with naming(path), files.open_text(path) as raw:
            if path.lower().endswith(".txt"):
                yield {columns[-1]: raw.read().decode()}
                return
            rows = (row for _, row in json_objects(raw, path))
            first = list(islice(rows, LINES_LOOKED_AT))
            check(dict.fromkeys(name for row in first for name in row))
            with contextlib.suppress(GeneratorExit):  # The digest needs the unread rest, too.
                yield from chain(first, rows)
    else:
        raise InputError(f"unknown kind of file; use {', '.join(ROW_SUFFIXES)}", path=path)
