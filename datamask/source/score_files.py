"""Scores from separate files, matched to documents by id.

The files may be far larger than a shard and in any order, so they are streamed, and only the rows
of the shard's documents are kept. An id that occurs twice is an error, because either score could
be wrong. Ids are text in every kind of file, as written there; their type is never inferred.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from datamask.config.inputs import Score
from datamask.errors import InputError, one_line
from datamask.source.columns import is_id, is_numeric
from datamask.source.footers import SCORE_SUFFIXES
from datamask.source.opening import list_files, open_binary, open_parquet

ROWS_AT_ONCE = 2**16
"""Lines of JSON read together if Arrow cannot read them."""

LINES_LOOKED_AT = 1000
"""Lines of a JSON file in which a column must occur."""

_Refuse = Callable[..., InputError]
"""Makes an error that names the file and the shard."""


def match_scores(score: Score, ids: pa.ChunkedArray, shard: int) -> pa.Array:
    """The scores of documents, in their order; null where the files have no such id.

    Args:
        score: kind `file`.
        ids: the documents' ids, as text.
        shard: for messages.

    Raises:
        InputError: a file is unreadable or lacks a column, the column is not numeric, or an id
            of the shard occurs twice.
    """
    keys: list[pa.Array] = []
    values: list[pa.Array] = []
    wanted = ids.combine_chunks()
    for key, value in _in_portions(score, shard, max(len(wanted), ROWS_AT_ONCE)):
        chosen = pc.is_in(key, wanted)
        keys += key.filter(chosen).chunks
        values += value.filter(chosen).chunks
    found = pa.chunked_array(keys, pa.string())
    counts = pc.value_counts(found)
    repeated = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(repeated):
        raise InputError(
            f"{len(repeated)} ids occur more than once, {repeated[0]['values'].as_py()!r} "
            f"{repeated[0]['counts'].as_py()} times; keep one score of each",
            path=score.path,
            shard=shard,
            column=score.id_column,
        )
    places = pc.index_in(wanted, found)
    return pa.chunked_array(values, pa.float64()).combine_chunks().take(places)


def _in_portions(
    score: Score, shard: int, least_rows: int
) -> Iterator[tuple[pa.ChunkedArray, pa.ChunkedArray]]:
    """Ids and scores of all files, in portions: each look-up makes a table of the wanted ids."""
    keys: list[pa.Array] = []
    values: list[pa.Array] = []
    for path in list_files(score.path, SCORE_SUFFIXES):
        for key, value in read_scores(path, score, shard):
            keys.append(key)
            values.append(value)
            if sum(map(len, keys)) >= least_rows:
                yield pa.chunked_array(keys), pa.chunked_array(values)
                keys, values = [], []
    yield pa.chunked_array(keys, pa.string()), pa.chunked_array(values, pa.float64())


def read_scores(
    path: str, score: Score, shard: int | None = None
) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Ids as text and scores as float64, batch by batch.

    Args:
        path: one file.
        score: kind `file`.
        shard: for messages.

    Raises:
        InputError: the file is unreadable, lacks a column or has one of another type.
    """
    refuse = functools.partial(InputError, path=path, shard=shard)
    try:
        for batch in _batches(path, score, shard, refuse):
            value, keys = batch.column(score.column), batch.column(score.id_column)
            if not is_numeric(value.type):
                problem = f"type {value.type}, needed a number; fix it, or name another column"
                raise refuse(problem, column=score.column)
            if not is_id(keys.type):
                problem = f"type {keys.type}, needed text or integer; write the ids as text"
                raise refuse(problem, column=score.id_column)
            keys = keys.cast(pa.string())
            keys.validate(full=True)  # Arrow does not check the bytes of JSON and Parquet
            yield keys, value.cast(pa.float64())
    except (pa.ArrowException, UnicodeEncodeError, OverflowError) as error:
        raise refuse(
            f"cannot be read as ids ({score.id_column}) and numbers ({score.column}): "
            f"{one_line(error)}; fix the file"
        ) from None


def _batches(
    path: str, score: Score, shard: int | None, refuse: _Refuse
) -> Iterator[pa.RecordBatch]:
    names = [score.id_column, score.column]

    def check(known: Iterable[str]) -> None:
        known = list(known)
        for name in names:
            if known.count(name) == 1:
                continue
            remedy = f"set column and id_column of score {score.name} to two of: {', '.join(known)}"
            twice = "occurs more than once; give every column its own name"
            raise refuse(twice if name in known else f"absent; {remedy}", column=name)

    if path.lower().endswith(".parquet"):
        with open_parquet(path, shard) as file:
            check(file.schema_arrow.names)
            yield from file.iter_batches(columns=names)
    elif path.lower().endswith(".csv"):
        with open_text(path, shard) as raw, pa.csv.open_csv(raw) as reader:
            check(reader.schema.names)
        # Ids are read as text: a number would lose its leading zeros.
        types = {score.id_column: pa.string(), score.column: pa.float64()}
        options = {
            "convert_options": pa.csv.ConvertOptions(column_types=types, include_columns=names),
            # Arrow names the row of a fault only if it reads with one thread.
            "read_options": pa.csv.ReadOptions(use_threads=False),
        }
        with open_binary(path) as raw, pa.csv.open_csv(raw, **options) as reader:
            yield from reader
    elif not path.lower().endswith(SCORE_SUFFIXES):
        raise refuse(f"unknown kind of file; use {', '.join(SCORE_SUFFIXES)}")
    else:
        with open_text(path, shard) as raw:
            rows = islice(json_objects(raw, path, shard), LINES_LOOKED_AT)
            check(dict.fromkeys(name for _, row in rows for name in row))
        yield from _json_batches(path, score, shard, refuse)


@contextlib.contextmanager
def open_text(path: str, shard: int | None = None) -> Iterator[IO[bytes]]:
    """Open a text file if it can be UTF-8; otherwise Arrow would blame its rows."""
    with open_binary(path, shard) as file:
        if b"\0" in file.read(4):
            problem = "encoded in UTF-16 or UTF-32; convert it to UTF-8"
            raise InputError(problem, path=path, shard=shard)
        file.seek(0)
        yield file


def _json_batches(
    path: str, score: Score, shard: int | None, refuse: _Refuse
) -> Iterator[pa.RecordBatch]:
    """Read lines of JSON by Arrow, which is fastest, until an id is not a string."""
    schema = pa.schema([(score.id_column, pa.string()), (score.column, pa.float64())])
    parsing = pa.json.ParseOptions(schema, unexpected_field_behavior="ignore")
    done = 0
    try:
        with open_binary(path) as raw:
            for batch in pa.json.open_json(raw, parse_options=parsing):
                yield batch
                done += batch.num_rows
        return
    except pa.ArrowInvalid as error:
        if "changed from string to number" not in str(error):
            raise
    with open_binary(path) as raw:
        rest = islice(json_objects(raw, path, shard), done, None)
        while part := list(islice(rest, ROWS_AT_ONCE)):
            ids = _column(part, score.id_column, str, refuse)
            values = _column(part, score.column, float, refuse)
            yield pa.RecordBatch.from_arrays([ids, values], schema=schema)


def _column(
    rows: list[tuple[int, dict[str, Any]]],
    name: str,
    kind: type[str] | type[float],
    refuse: _Refuse,
) -> pa.Array:
    """One column of some objects: whole numbers become text as ids, and floats as scores."""
    values: list[str | float | None] = []
    for number, row in rows:
        value = row.get(name)
        if not isinstance(value, int | kind | None) or isinstance(value, bool):
            needed = "text or a whole number" if kind is str else "a number"
            raise refuse(f"{value!r}, needed {needed}; correct it", row=number, column=name)
        values.append(None if value is None else kind(value))
    return pa.array(values, pa.string() if kind is str else pa.float64())


def json_objects(
    file: Iterable[bytes], path: str, shard: int | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file of JSON lines, each with the number of its line (from 0)."""
    for number, line in enumerate(file):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            problem = f"not JSON ({error}); correct the line"
            raise InputError(problem, path=path, shard=shard, row=number) from None
        if not isinstance(found, dict):
            problem = "not a JSON object; correct the line"
            raise InputError(problem, path=path, shard=shard, row=number)
        yield number, found
