"""The bound on one document: `source.most_characters`, applied wherever a text is read.

A Parquet file of some kilobytes can hold a text of gigabytes, and a text that its dictionary holds
once can fill any number of rows. So texts are read as their distinct values, these are compared
with the bound, and rows are made from them in batches of at most BATCH_BYTES, or of one row.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from datamask.config.inputs import Source

BATCH_BYTES = 32 * 2**20
"""Bytes of text in a batch of several rows: stages hold up to ten times as much while they work."""

BATCH_ROWS = 8192
"""Rows of a batch of short texts."""

EXPANDED_BYTES = 2**30
"""The most memory that is risked for a batch whose texts may be copies of one."""

HEADER_BYTES = 2**16
"""More than the headers of a column's pages need in a row group of few rows."""

BYTES_PER_CHARACTER = 4
"""The most that UTF-8 needs."""


@dataclass(frozen=True, slots=True)
class Bounded:
    """Rows of a batch, from the row *first* of it on.

    `long`: characters of each text that is longer than the bound, by row of `batch`.
    """

    first: int
    batch: pa.RecordBatch
    long: dict[int, int]


def text_column(source: Source, names: list[str]) -> str | None:
    """The column of *names* that holds the documents' texts; None if there is none."""
    text = source.columns.text
    return text if source.layout == "documents" and text in names else None


def bounded(batch: pa.RecordBatch, source: Source) -> Iterator[Bounded]:
    """The rows of a batch in small parts, with each text within the bound.

    By `source.longer`, a longer text is cut after `source.most_characters` characters (`cut`), or
    null (`drop`); with `refuse` it stays.
    """
    column = batch.schema.get_field_index(source.columns.text)
    texts = batch.column(column)
    if texts.type == pa.string_view():  # few of Arrow's functions take views
        texts = texts.cast(pa.large_string())
    rows, values = np.arange(len(batch)), texts
    is_null = texts.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_dictionary(texts.type):
        rows = texts.indices.fill_null(0).to_numpy()
        values = texts.dictionary
    if is_null.all():
        values, rows = pa.array([""], values.type), np.zeros(len(batch), np.int64)
    sizes = pc.fill_null(pc.binary_length(values), 0).to_numpy().astype(np.int64)
    long = {}
    for index in np.flatnonzero(sizes > source.most_characters):
        characters = pc.utf8_length(values.slice(index, 1))[0].as_py()
        if characters > source.most_characters:
            long[int(index)] = characters
    if source.longer != "refuse" and long:
        values = _shortened(values, list(long), source)
    end = np.where(is_null, 0, np.minimum(sizes, _most_bytes(source))[rows]).cumsum()
    number = (end - 1) // BATCH_BYTES
    borders = [0, *(np.flatnonzero(np.diff(number)) + 1), len(batch)]
    for start, stop in itertools.pairwise(borders):
        if start == stop:
            continue
        taken = _take(values, rows[start:stop], is_null[start:stop])
        arrays = [array.slice(start, stop - start) for array in batch.columns]
        arrays[column] = taken
        schema = batch.schema.set(column, batch.schema.field(column).with_type(taken.type))
        long_rows = {
            row: long[index]
            for row, index in enumerate(rows[start:stop].tolist())
            if index in long and not is_null[start + row]
        }
        yield Bounded(int(start), pa.RecordBatch.from_arrays(arrays, schema=schema), long_rows)


def _most_bytes(source: Source) -> int:
    return BYTES_PER_CHARACTER * source.most_characters


def _shortened(values: pa.Array, indices: list[int], source: Source) -> pa.Array:
    """The values with those at some indices cut, or null."""
    others = np.ones(len(values), bool)
    others[indices] = False
    if source.longer == "drop":
        return pc.if_else(pa.array(others), values, pa.scalar(None, values.type))
    try:
        most = source.most_characters
        cut = [pc.utf8_slice_codeunits(values.slice(index, 1), 0, most) for index in indices]
    except pa.ArrowInvalid:
        return values  # not UTF-8: `check_text` names the row
    order = np.cumsum(others) - 1
    order[indices] = others.sum() + np.arange(len(indices))
    kept = values.filter(pa.array(others))
    return pa.concat_arrays([kept, *cut]).take(pa.array(order))


def _take(values: pa.Array, rows: np.ndarray, is_null: np.ndarray) -> pa.Array:
    """The values of some rows; without a copy if they are consecutive."""
    if np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows))) and not is_null.any():
        return values.slice(rows[0], len(rows))
    return values.take(pa.array(rows, mask=is_null))


def rows_at_once(group: pq.RowGroupMetaData, names: list[str]) -> int:
    """How many rows of a row group have about BATCH_BYTES in these columns; BATCH_ROWS at most."""
    size: int = sum(chunk.total_uncompressed_size for chunk in chunks_of(group, names))
    rows: int = BATCH_BYTES * group.num_rows // max(size, 1)
    return max(1, min(BATCH_ROWS, rows))


def expanding(text: str | None, footer: pq.FileMetaData) -> list[str]:
    """The column *text*, if a batch of its rows may need over EXPANDED_BYTES; else none.

    A value may have all bytes of its row group, and be in every row. Read as distinct values, a
    single large one takes twice the memory.
    """
    for index in range(footer.num_row_groups if text else 0):
        group = footer.row_group(index)
        for chunk in chunks_of(group, [str(text)]):
            most = rows_at_once(group, [str(text)]) * chunk.total_uncompressed_size
            if chunk.has_dictionary_page and most > EXPANDED_BYTES:
                return [str(text)]
    return []


def chunks_of(group: pq.RowGroupMetaData, names: list[str]) -> Iterator[pq.ColumnChunkMetaData]:
    """What a footer says of some columns of a row group."""
    for index in range(group.num_columns):
        chunk = group.column(index)
        if chunk.path_in_schema.partition(".")[0] in names:
            yield chunk


def remedy(source: Source) -> str:
    """What to do about a text that is refused."""
    return (
        f"raise source.most_characters ({source.most_characters:,d}), or set source.longer to cut "
        "or drop"
    )


def surely_long(metadata: pq.FileMetaData, source: Source) -> tuple[int, int] | None:
    """The first and last row of the first row group that must hold a text beyond the bound.

    The footer alone says so: its texts need more bytes than texts within the bound can have.
    """
    before = 0
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        for chunk in chunks_of(group, [source.columns.text]):
            least = (chunk.total_uncompressed_size - HEADER_BYTES) // max(group.num_rows, 1)
            if least > _most_bytes(source) + 64:  # a length, and levels, for each value
                return before, before + group.num_rows - 1
        before += group.num_rows
    return None
