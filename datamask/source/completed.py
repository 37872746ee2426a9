"""Columns that a Parquet file of the source does not have as such.

Values come from the file's folders (Hive partitions, `dump=2024-10/`), from within a record (dotted
names), or from the file and row (ids that are made). A column that only other files have is null.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datamask.config.inputs import Columns, Source
from datamask.errors import InputError
from datamask.source.opening import PinnedParquet, partitions
from datamask.source.originals import FOLDER, base_of

UUID = pa.binary(16)
"""Type of ids that are UUIDs."""


def name_in_source(path: str, source: Source) -> str:
    """Return the name of a file within the source, which does not change with its commit."""
    in_repository = re.sub(r"^hf://[^@]*@[^/]*/", "", path)
    within = in_repository if in_repository != path else path.removeprefix(base_of(source.path))
    return path.rpartition("/")[2] if within == path else within


def folders_of(path: str, source: Source) -> dict[str, str | None]:
    """Return the values that folders within the source give to the columns of a file."""
    is_copy = f"/{FOLDER}/" in path
    name = path if is_copy else name_in_source(path, source)
    return partitions(name)


def makes_ids(schema: pa.Schema, source: Source) -> bool:
    """Return True if ids are made, because no column is called `id` and no setting names one."""
    return source.id_column == Columns().id and source.id_column not in schema.names


def lacking_ids(
    schemas: Iterable[tuple[str, pa.Schema]], schema: pa.Schema, source: Source
) -> Iterator[InputError]:
    """Yield an error for each file that lacks the column of ids, if other files have it.

    *schemas* are path and schema of each file, *schema* is that of the whole source.
    """
    column = source.id_column
    if type_within(schema, column) is not None:
        for path, of_file in schemas:
            if type_within(of_file, column) is None:
                problem = "absent, but other files have ids; give all files ids, or none"
                yield InputError(problem, path=path, column=column)


def type_within(schema: pa.Schema, name: str) -> pa.DataType | None:
    """Return the type of a column, or of a value within records, by its dotted name, or None."""
    if schema.names.count(name) == 1:
        return schema.field(name).type
    first, *rest = name.split(".")
    kind: pa.DataType | None = None
    if rest and schema.names.count(first) == 1:
        kind = schema.field(first).type
    for key in rest:
        at = kind.get_field_index(key) if kind is not None and pa.types.is_struct(kind) else -1
        kind = kind.field(at).type if kind is not None and at >= 0 else None
    return kind


def with_folders(schema: pa.Schema, path: str, source: Source) -> pa.Schema:
    """Return the schema of a file with the columns that its folders give."""
    for name in folders_of(path, source):
        if name not in schema.names:
            schema = schema.append(pa.field(name, pa.string()))
    return schema


def with_fields(schema: pa.Schema, source: Source, wanted: Sequence[str]) -> pa.Schema:
    """Return the schema of the source with the *wanted* columns that are within records.

    Ids that are UUIDs, or are made, are text.
    """
    for name in dict.fromkeys(wanted):
        kind = type_within(schema, name)
        if name not in schema.names and kind is not None:
            schema = schema.append(pa.field(name, kind))
    if makes_ids(schema, source):
        return schema.append(pa.field(source.id_column, pa.string()))
    index = schema.get_field_index(source.id_column)
    if index >= 0 and schema.field(index).type == UUID:
        schema = schema.set(index, pa.field(source.id_column, pa.string()))
    return schema


def batches_of(
    file: PinnedParquet,
    names: Sequence[str],
    source: Source | None,
    groups: Sequence[int] | None = None,
    size: int = 65_536,
) -> Iterator[pa.RecordBatch]:
    """Yield some columns of a file, in this order, and of some row groups, in batches of *size*.

    Without a *source*, the file has all columns itself.
    """
    schema = file.schema_arrow
    groups = range(file.num_row_groups) if groups is None else groups
    read = [name for name in names if type_within(schema, name) is not None]
    batches = file.iter_batches(size, row_groups=list(groups), columns=read, use_threads=False)
    if source is None or all(name in schema.names and name != source.id_column for name in names):
        yield from (batch.select(list(names)) for batch in batches)
        return
    rows = np.concatenate([_rows_of(file, groups), np.zeros(0, np.int64)])
    first = 0
    for batch in batches:
        of_batch = rows[first : first + len(batch)]
        columns = [_column(batch, name, file.path, source, of_batch) for name in names]
        yield pa.RecordBatch.from_arrays(columns, names=list(names))
        first += len(batch)


def _rows_of(file: PinnedParquet, groups: Sequence[int]) -> Any:
    counts = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    starts = np.cumsum([0, *counts])
    parts = [np.arange(starts[group], starts[group + 1]) for group in groups]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _column(
    batch: pa.RecordBatch, name: str, path: str, source: Source, rows: np.ndarray
) -> pa.Array:
    if name in batch.schema.names:
        values = batch.column(name)
    elif (values := _within(batch, name)) is None:
        folders = folders_of(path, source)
        if name in folders:
            return pa.repeat(pa.scalar(folders[name], pa.string()), len(batch))
        if name == source.id_column:
            numbers = pa.array(rows).cast(pa.string())
            return pc.binary_join_element_wise(name_in_source(path, source), numbers, ":")
        return pa.nulls(len(batch))
    if name == source.id_column:
        values = values.storage if isinstance(values, pa.ExtensionArray) else values
        if values.type == UUID:
            ids = (None if of is None else str(uuid.UUID(bytes=of)) for of in values.to_pylist())
            return pa.array(ids, pa.string())
    return values


def _within(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    """Return the values within records at a dotted name, or None if there are none."""
    first, *rest = name.split(".")
    if not rest or type_within(batch.schema, name) is None:
        return None
    return pc.struct_field(batch.column(first), rest)
