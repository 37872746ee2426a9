"""Apply the limit on one document, `source.most_characters`, wherever a text is read.

A Parquet file of some kilobytes can hold a text of gigabytes, or one text in any number of rows. So
few rows of large texts are read at once, as their distinct values where these may be few, and each
batch is divided into parts of at most BATCH_BYTES, or of one row.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from datamask.config.inputs import Source

BATCH_BYTES = 32 * 2**20
"""Bytes of text in a batch of several rows: stages hold up to ten times as much while they work."""

BATCH_ROWS = 2**15
"""Maximum rows of a batch. If texts come as their distinct values, all values of a row group are in
each of its batches."""

EXPANDED_BYTES = 2**30
"""Maximum memory that is risked for a batch whose texts may be copies of one text."""

HEADER_BYTES = 2**16
"""More than the headers of a column's pages need in a row group of few rows."""

BYTES_PER_CHARACTER = 4
"""Maximum bytes that UTF-8 needs for a character."""


def bounded(
    batch: pa.RecordBatch, source: Source
) -> Iterator[tuple[int, pa.RecordBatch, dict[int, int]]]:
    """Yield the rows of a batch in small parts, with each text within the limit.

    By `source.longer`, a longer text is cut after `source.most_characters` characters (`cut`), or
    becomes null (`drop`); with `refuse` it stays. Each part comes with its first row in the batch,
    the rows, and the characters of each longer text, by row of the part.
    """
    column = batch.schema.get_field_index(source.columns.text)
    texts = batch.column(column)
    if texts.type == pa.string_view():  # Few of Arrow's functions take views.
        texts = texts.cast(pa.large_string())
    if pa.types.is_dictionary(texts.type):
        lengths = pc.binary_length(texts.dictionary).take(texts.indices)
    else:
        lengths = pc.binary_length(texts)
    sizes = pc.fill_null(lengths, 0).to_numpy().astype(np.int64)
    end = np.minimum(sizes, _most_bytes(source)).cumsum()
    number = (end - 1) // BATCH_BYTES
    borders = [0, *(np.flatnonzero(np.diff(number)) + 1), len(batch)]
    for start, stop in itertools.pairwise(borders):
        if start == stop:
            continue
        arrays = [array.slice(start, stop - start) for array in batch.columns]
        some = texts.slice(start, stop - start)
        some = some.dictionary_decode() if pa.types.is_dictionary(some.type) else some
        long = {}
        for row in np.flatnonzero(sizes[start:stop] > source.most_characters).tolist():
            characters = pc.utf8_length(some.slice(row, 1))[0].as_py()
            if characters > source.most_characters:
                long[row] = characters
        if source.longer != "refuse" and long:
            some = _shortened(some, list(long), source)
        arrays[column] = some
        schema = batch.schema.set(column, batch.schema.field(column).with_type(some.type))
        yield int(start), pa.RecordBatch.from_arrays(arrays, schema=schema), long


def _most_bytes(source: Source) -> int:
    return BYTES_PER_CHARACTER * source.most_characters


def _shortened(texts: pa.Array, long: list[int], source: Source) -> pa.Array:
    """Return the texts with the *long* ones, by row, cut or null."""
    if source.longer == "drop":
        is_long = pa.array(np.isin(np.arange(len(texts)), long))
        return pc.if_else(is_long, pa.scalar(None, texts.type), texts)
    try:
        return pc.utf8_slice_codeunits(texts, 0, source.most_characters)
    except pa.ArrowInvalid:
        return texts  # Not UTF-8: `check_text` names the row.


def rows_at_once(group: pq.RowGroupMetaData, names: list[str]) -> int:
    """Return how many rows of a row group have about BATCH_BYTES here; BATCH_ROWS at most."""
    size: int = sum(chunk.total_uncompressed_size for chunk in chunks_of(group, names))
    rows: int = BATCH_BYTES * group.num_rows // max(size, 1)
    return max(1, min(BATCH_ROWS, rows))


def may_expand(footer: pq.FileMetaData, text: str) -> bool:
    """Return True if a batch of the column *text* may need over EXPANDED_BYTES.

    A value may have all bytes of its row group, and be in every row.
    """
    return any(
        rows_at_once(group, [text]) * chunk.total_uncompressed_size > EXPANDED_BYTES
        for group in map(footer.row_group, range(footer.num_row_groups))
        for chunk in chunks_of(group, [text])
        if chunk.has_dictionary_page
    )


def chunks_of(group: pq.RowGroupMetaData, names: list[str]) -> Iterator[pq.ColumnChunkMetaData]:
    """Yield the facts in a footer about some columns of a row group."""
    for index in range(group.num_columns):
        chunk = group.column(index)
        path = f"{chunk.path_in_schema}."
        if any(path.startswith(f"{name}.") for name in names):
            yield chunk


def remedy(source: Source) -> str:
    """Say how to accept a text that is refused."""
    return (
        f"raise source.most_characters ({source.most_characters:,d}), or set source.longer to cut "
        "or drop"
    )


def surely_long(metadata: pq.FileMetaData, source: Source) -> tuple[int, int] | None:
    """Find the first row group that must hold a too long text; return its first and last row.

    The footer says how many bytes the texts of a group take. A group with more than texts within
    the limit can take is found without reading it. None: no group is.
    """
    before = 0
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        for chunk in chunks_of(group, [source.columns.text]):
            least = (chunk.total_uncompressed_size - HEADER_BYTES) // max(group.num_rows, 1)
            if least > _most_bytes(source) + 64:  # Each value has a length, and levels.
                return before, before + group.num_rows - 1
        before += group.num_rows
    return None
