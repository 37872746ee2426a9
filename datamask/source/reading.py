"""Documents from Parquet files, local or at an fsspec URL.

Footers, which are examined in seconds, give the rows and bytes of each row group and identify a
file. Shards are row ranges that ignore file boundaries and cut row groups. A shard's reader yields
exactly the plan's rows, in order, in one schema, and reads only the requested columns. Problems are
one line that names the file. Credentials and endpoints come from the environment alone (HF_TOKEN,
AWS_*).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datamask.config.inputs import Source
from datamask.errors import DatamaskError, InputError, one_line
from datamask.runs.in_progress import note
from datamask.runs.run import Run
from datamask.runs.schemas import Piece
from datamask.source import long_texts
from datamask.source.completed import batches_of
from datamask.source.opening import PinnedParquet, is_remote, open_parquet
from datamask.source.originals import at_original

FETCH_BYTES = 64 * 2**20
"""Compressed bytes of a remote file held at a time, if one row group is not larger."""

SCHEMA_KEY = b"datamask-source-schema"
"""Key in plan.parquet of the source's one schema (Arrow IPC, in hexadecimal)."""


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a column's type without encoding: a dictionary's values, a view as large text."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(plain_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(plain_type(field.type)) for field in kind])
    # Few of Arrow's functions take views.
    views = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    return views.get(kind, kind)


def cast_plain(values: Any, kind: pa.DataType) -> Any:
    """Cast an Arrow column to a type without encoding."""
    if pa.types.is_dictionary(values.type):  # Arrow cannot take from views.
        known = plain_type(values.type)
        values = values.cast(pa.dictionary(values.type.index_type, known))
    return values.cast(kind)


@functools.lru_cache(maxsize=64)  # Most files of a source have the same schema.
def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Remove metadata and encodings from a schema; these may differ between equal files."""
    return pa.schema([pa.field(field.name, plain_type(field.type)) for field in schema])


@dataclass(frozen=True, slots=True)
class SourceFile:
    """Facts from a Parquet footer: `digest` of size and footer, `size` in bytes.

    `groups` are rows and uncompressed bytes of each row group.
    """

    path: str
    size: int
    digest: str
    groups: tuple[tuple[int, int], ...]
    schema: pa.Schema


def read_footers(paths: Sequence[str]) -> tuple[list[SourceFile], list[DatamaskError]]:
    """Read footers of Parquet files; return the readable ones in order, and the problems."""

    def read(path: str) -> SourceFile | DatamaskError:
        try:
            with open_parquet(path) as file:
                groups = (file.metadata.row_group(i) for i in range(file.num_row_groups))
                counts = tuple((group.num_rows, group.total_byte_size) for group in groups)
                schema = plain_schema(file.schema_arrow)
                return SourceFile(path, file.size, file.digest, counts, schema)
        except DatamaskError as error:
            return error

    with ThreadPoolExecutor(16 if any(map(is_remote, paths)) else 2) as pool:
        results = [*pool.map(read, paths)]
    return (
        [result for result in results if isinstance(result, SourceFile)],
        [result for result in results if isinstance(result, DatamaskError)],
    )


def joined(
    batches: Iterable[pa.RecordBatch], size_of: Callable[[pa.RecordBatch], int], least: int
) -> Iterator[pa.Table]:
    """Join batches of one schema, in one chunk, until their sizes add up to *least*."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += size_of(batch)
        if size >= least:
            yield pa.Table.from_batches(waiting).combine_chunks()
            waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting).combine_chunks()


def invalid_text(values: pa.Array) -> int | None:
    """Return the position of the first text that is not UTF-8, or None; Arrow does not check."""
    try:
        values.validate(full=True)
        return None
    except pa.ArrowInvalid:
        for position, value in enumerate(values.cast(pa.large_binary()).to_pylist()):
            try:
                (value or b"").decode()
            except UnicodeDecodeError:
                return position
        raise


def source_schema(run: Run) -> pa.Schema:
    """Return the schema of the source's columns, as `read_shard` yields them."""
    encoded = run.plan_metadata[SCHEMA_KEY].decode()
    return pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(encoded)))


def read_shard(
    run: Run,
    shard: int,
    columns: list[str] | None = None,
    rows: np.ndarray | None = None,
    long: dict[int, int] | None = None,
    has_text: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Stream the rows of a shard, in order, in the source's schema; texts are `bounded`.

    *columns* are read in this order; None reads all. With *rows*, ascending, only those are read,
    and only row groups that contain some. *long* gets the characters of each text beyond the limit,
    by its row in the shard. Without *has_text*, no column is a text.

    Raises:
        InputError: a file is unreadable or not the one that was planned, a column is absent, or a
            text is too long, by `source.longer`.
    """
    schema = source_schema(run)
    names = schema.names if columns is None else columns
    for name in names:
        if name not in schema.names:
            path = run.pieces[0].path
            raise InputError("absent; check source.columns", path=path, shard=shard, column=name)
    schema = pa.schema([schema.field(name) for name in names])
    source, start = run.settings.source, 0
    text = None
    if has_text and source.layout == "documents" and source.columns.text in names:
        text = source.columns.text
    for piece in run.shard_pieces[shard]:
        inside, done = None, 0
        if rows is not None:
            inside = rows[slice(*np.searchsorted(rows, (start, start + piece.rows)))] - start
        for batch in read_piece(piece, names, inside, text, source):
            parts = long_texts.bounded(batch, source) if text else [(0, batch, {})]
            for first, part, characters_of in parts:
                for number, characters in characters_of.items():
                    number += done + first
                    row = start + (number if inside is None else int(inside[number]))
                    if source.longer == "refuse":
                        remedy = long_texts.remedy(source)
                        problem = f"a text of {characters:,d} characters; {remedy}"
                        raise row_error(run, shard, row, source.columns.text, problem)
                    if long is not None:
                        long[row] = characters
                yield _cast(part, schema, piece)
            done += len(batch)
        start += piece.rows


def read_ids(run: Run, shard: int) -> pa.ChunkedArray:
    """Read the ids of a shard's documents, in order, as text. Errors are as in `read_shard`."""
    batches = read_shard(run, shard, [run.settings.source.id_column], has_text=False)
    return pa.chunked_array([batch.column(0) for batch in batches]).cast(pa.string())


def read_documents(run: Run, shard: int) -> Iterator[tuple[int, pa.Array, pa.Array]]:
    """Yield batches of a shard: the first row, the ids (string), the texts (large_string).

    Raises:
        InputError: as in `read_shard`, or a text is not UTF-8.
    """
    source, first = run.settings.source, 0
    for batch in read_shard(run, shard, [source.id_column, source.columns.text]):
        texts = batch.column(1).cast(pa.large_string())
        check_text(run, shard, first, texts, source.columns.text)
        yield first, batch.column(0).cast(pa.string()), texts
        first += len(texts)


def read_piece(
    piece: Piece,
    names: list[str],
    rows: np.ndarray | None = None,
    text: str | None = None,
    source: Source | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the planned rows of one file, or only *rows* of them, in the file's own types.

    The column *text* may come as its distinct values (`open_parquet`). A file of the *source* may
    lack columns (`source.completed`).

    Raises:
        InputError: the file is unreadable, or not the one that was planned.
    """
    if rows is not None and not len(rows):
        return
    skip, left = piece.skip_rows, piece.rows
    groups = range(piece.first_row_group, piece.first_row_group + piece.num_row_groups)
    with open_parquet(piece.path, piece.shard, piece.digest, text) as file:
        if rows is not None:
            some, wanted, before = [], [], 0  # places of the wanted rows in these row groups
            for group, start, inside in groups_with(file, piece, rows):
                some.append(group)
                wanted.append(inside - start + before)
                before += file.metadata.row_group(group).num_rows
            places = np.concatenate(wanted)
            until = int(places[-1]) + 1
            for _, taken in take_rows(_batches(file, some, names, source, until), places):
                yield taken
            return
        for batch in _batches(file, groups, names, source, skip + left):
            if skip >= batch.num_rows:
                skip -= batch.num_rows
                continue
            taken = batch.slice(skip, left)
            skip, left = 0, left - taken.num_rows
            yield taken
            if not left:
                return


def groups_with(
    file: pq.ParquetFile, piece: Piece, rows: np.ndarray
) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield row groups with some of a piece's *rows*, their first row, and those rows.

    Rows count from the piece's start, and are ascending.
    """
    start = -piece.skip_rows
    for group in range(piece.first_row_group, piece.first_row_group + piece.num_row_groups):
        stop = start + file.metadata.row_group(group).num_rows
        inside = rows[slice(*np.searchsorted(rows, (start, stop)))]
        if len(inside):
            yield group, start, inside
        start = stop


def take_rows(
    batches: Iterable[pa.RecordBatch], rows: np.ndarray
) -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
    """Take *rows*, ascending, from batches; yield their numbers and the rows of each batch."""
    start = 0
    for batch in batches:
        inside = rows[slice(*np.searchsorted(rows, (start, start + batch.num_rows)))]
        if len(inside):
            rows_of_batch = pa.array(inside - start)
            try:
                taken = batch.take(rows_of_batch)
            except pa.ArrowNotImplementedError:  # of views
                taken = batch.cast(plain_schema(batch.schema)).take(rows_of_batch)
            yield inside, taken
        start += batch.num_rows
        if len(rows) and start > rows[-1]:
            return  # What follows is not even decoded.


def _batches(
    file: PinnedParquet, groups: Sequence[int], names: list[str], source: Source | None, until: int
) -> Iterator[pa.RecordBatch]:
    """Yield batches of some row groups; groups up to FETCH_BYTES are fetched together.

    Rows from *until* on are not wanted: the first batch has none if it can.
    """
    together: list[int] = []
    size, at_once = 0, min(long_texts.BATCH_ROWS, until)
    for group in groups:
        columns = file.metadata.row_group(group)
        together.append(group)
        size += sum(chunk.total_compressed_size for chunk in long_texts.chunks_of(columns, names))
        at_once = min(at_once, long_texts.rows_at_once(columns, names))
        if size >= FETCH_BYTES or group == groups[-1]:
            note(source_bytes=size)
            yield from batches_of(file, names, source, together, at_once)
            together, size, at_once = [], 0, min(long_texts.BATCH_ROWS, until)


def _cast(batch: pa.RecordBatch, schema: pa.Schema, piece: Piece) -> pa.RecordBatch:
    arrays = []
    for field in schema:
        try:
            arrays.append(batch.column(field.name).cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            problem = f"does not cast to {field.type} ({one_line(error)})"
            where = {"path": piece.path, "column": field.name}
            raise InputError(problem, shard=piece.shard, **where) from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def check_text(run: Run, shard: int, first: int, values: pa.Array, column: str) -> None:
    """Refuse texts that are not UTF-8, naming file and row; the first text is the row *first*."""
    if (at := invalid_text(values)) is not None:
        raise row_error(run, shard, first + at, column, "not valid UTF-8; re-encode it")


def row_error(run: Run, shard: int, row: int, column: str, problem: str) -> DatamaskError:
    """Return the error about a value in a shard's row; it names file and row or line."""
    path, row_of_file = locate(run, shard, row)
    return at_original(InputError(problem, path=path, shard=shard, row=row_of_file, column=column))


def locate(run: Run, shard: int, row: int) -> tuple[str, int]:
    """Return the file of a shard's row, and the row within it (from 0); for messages."""
    for piece in run.shard_pieces[shard]:
        if row < piece.rows:
            with open_parquet(piece.path, shard, piece.digest) as file:
                earlier = map(file.metadata.row_group, range(piece.first_row_group))
                before = sum(group.num_rows for group in earlier)
            return piece.path, before + piece.skip_rows + row
        row -= piece.rows
    raise IndexError(row)
