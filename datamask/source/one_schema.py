"""Give the records of several files one schema."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from datamask.errors import InputError, one_line
from datamask.source.reading import cast_plain
from datamask.source.types import widened

PIECE_BYTES = 2**26
"""Most bytes of a batch that is cast at once."""

KEYS = b"keys"
"""Key of a JSON column's metadata that holds the pointer to its values."""

LARGE = b"large"
"""Marks a column of whole numbers in which one is beyond `types.EXACT`."""


def merge_schemas(schemas: Iterable[tuple[str, pa.Schema]]) -> pa.Schema:
    """Return one schema with the columns of all files, in types that `types.widened` chooses.

    Raises:
        InputError: different values would be one column, or no type holds its values.
    """
    merged: dict[str, pa.Field] = {}
    for name, schema in schemas:
        for field in schema:
            known = merged.get(field.name, field)
            marks = [of.metadata or {} for of in (known, field)]
            pointers = {mark[KEYS] for mark in marks if KEYS in mark}
            if len(pointers) > 1 or schema.names.count(field.name) > 1:
                problem = "two values have this name, such as key `m.a` and `a` in `m`; rename one"
                raise InputError(problem, path=name, column=field.name)
            are_exact = not any(LARGE in mark for mark in marks)
            kind = widened(known.type, field.type, lambda _: are_exact)  # noqa: B023 - called at once
            if kind is None:
                problem = f"type {field.type} does not fit {known.type} of the other files"
                raise InputError(f"{problem}; give all the same", path=name, column=field.name)
            kind = pa.string() if pa.types.is_large_string(kind) else kind
            # JSON has its values where a pointer says; other files have none.
            merged[field.name] = pa.field(field.name, kind, metadata=marks[1] | marks[0])
    return pa.schema(list(merged.values()))


def fitted(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, name: str
) -> Iterator[pa.RecordBatch]:
    """Yield batches of the file *name* in *schema*, null where the file has no such column."""
    return (_cast(batch, schema, name) for batch in batches)


def _cast(batch: pa.RecordBatch, schema: pa.Schema, name: str) -> pa.RecordBatch:
    columns = []
    for field in schema:
        if field.name not in batch.schema.names:
            columns.append(pa.nulls(len(batch), field.type))
            continue
        try:
            values = batch.column(field.name)
            if pa.types.is_string(values.type) and not pa.types.is_string(field.type):
                values = pc.utf8_trim_whitespace(values)  # A cell of CSV.
            columns.append(cast_plain(values, field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            problem = f"does not fit type {field.type} of the other files ({one_line(error)})"
            raise InputError(problem, path=name, column=field.name) from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Halve batches until each has at most `PIECE_BYTES`: one column of text holds 2 GiB."""
    for batch in batches:
        yield from _halves(batch)


def _halves(batch: pa.RecordBatch, is_slice: bool = False) -> Iterator[pa.RecordBatch]:
    if batch.nbytes <= PIECE_BYTES or len(batch) < 2:
        # When Arrow casts a slice, it looks at the offset in the batch; a copy begins at 0.
        yield batch.take(pa.array(range(len(batch)))) if is_slice else batch
        return
    half = len(batch) // 2
    for piece in (batch.slice(0, half), batch.slice(half)):
        yield from _halves(piece, True)
