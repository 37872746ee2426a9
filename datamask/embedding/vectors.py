"""Embeddings as numpy matrices and Arrow columns, without Python lists in between.

Embeddings are read from lists, large lists or fixed-size lists of float16, float32, float64 or
int8, and written as fixed-size lists of float16 with unit length, or of int8 with a scale for each.
Errors name the row within the column; the caller adds the shard.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from datamask.errors import CorruptFileError, InputError
from datamask.runs import schemas
from datamask.runs.files import reading
from datamask.source.columns import is_vector

COLUMN = "feature_arr"


def to_matrix(
    column: pa.Array | pa.ChunkedArray, dimension: int, *, path: object = None, name: str = COLUMN
) -> np.ndarray:
    """Turn a column of N lists of floats or int8 into a float32 matrix, N x *dimension*.

    Raises:
        InputError: a null, another width, or a number that is not finite; names *path* and *name*.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    refuse = functools.partial(InputError, path=path, column=name)
    if not is_vector(column.type):
        raise refuse(f"type {column.type}, needed a list of floats or int8")
    if column.null_count:
        row = pc.index(pc.is_null(column), True).as_py()
        raise refuse("null; give every document an embedding", row=row)
    widths = pc.list_value_length(column)
    if (row := pc.index(pc.not_equal(widths, dimension), True).as_py()) >= 0:
        problem = f"{widths[row]} numbers wide; embedding.dimension is {dimension}; fix one of them"
        raise refuse(problem, row=row)
    flat = column.flatten()
    # A null inside a list becomes NaN here and is refused below.
    numbers = flat.to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):  # A number that float32 does not hold becomes infinite.
        matrix: np.ndarray = numbers.astype(np.float32).reshape(len(column), dimension)
    wrong = np.flatnonzero(~np.isfinite(matrix).all(axis=1))
    if len(wrong):
        problem = "NaN or infinite number in the embedding; fix it or drop the row"
        raise refuse(problem, row=int(wrong[0]))
    return matrix


def normalise(matrix: np.ndarray, *, path: object = None, name: str = COLUMN) -> np.ndarray:
    """Scale rows to length 1, float32, N x D.

    Raises:
        InputError: a row is all zeros; the error names it.
    """
    lengths = np.linalg.norm(matrix.astype(np.float64), axis=1, keepdims=True)
    zero = np.flatnonzero(lengths[:, 0] == 0)
    if len(zero):
        problem = "all zeros, has no direction; fix it or drop the row"
        raise InputError(problem, path=path, row=int(zero[0]), column=name)
    return np.asarray((matrix / lengths).astype(np.float32))


def to_columns(matrix: np.ndarray, storage: str = "float16") -> list[pa.Array]:
    """Turn unit rows, N x D, into the columns of `schemas.embeddings` after the id.

    In int8, each row is divided by its largest number / 127 (the second column) and rounded, so a
    number is off by at most 1/254 of the row's largest.
    """
    rows, dimension = matrix.shape
    kind = schemas.embeddings(dimension, storage).field(COLUMN).type
    if storage == "int8":
        scale = np.abs(matrix).max(axis=1).astype(np.float32) / 127
        whole = np.rint(matrix / scale[:, None]).astype(np.int8)
        packed = pa.FixedSizeBinaryArray.from_buffers(kind, rows, [None, pa.py_buffer(whole)])
        return [packed, pa.array(scale)]
    flat = pa.array(np.ascontiguousarray(matrix, dtype=np.float16).reshape(-1))
    return [pa.FixedSizeListArray.from_arrays(flat, type=kind)]


def _from_columns(table: pa.Table, dimension: int) -> np.ndarray:
    """Invert `to_columns`: unit rows, float16 (as stored) or float32 (from int8)."""
    column = table[COLUMN].combine_chunks()
    if pa.types.is_fixed_size_list(column.type):
        return np.asarray(column.flatten().to_numpy().reshape(-1, dimension))
    first, size = column.offset * dimension, len(column) * dimension
    whole = np.frombuffer(column.buffers()[1], np.int8)[first : first + size]
    matrix = whole.reshape(-1, dimension) * table["scale"].to_numpy()[:, None]
    return np.asarray(matrix / np.linalg.norm(matrix, axis=1, keepdims=True))


def read_vectors(
    path: Path, dimension: int, rows: np.ndarray | None = None, dtype: type = np.float16
) -> np.ndarray:
    """Read the unit vectors of an `embeddings/` file in its order; *dtype*, N x D.

    Peak memory is the matrix and one row group. *rows* are places of the N wanted vectors,
    ascending; only their row groups are read; None: all. Vectors stored as int8 are rounded.

    Raises:
        CorruptFileError: the file is damaged, lacks a row, or its vectors are not D wide.
    """
    with reading(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        groups = [file.metadata.row_group(group) for group in range(file.num_row_groups)]
        bounds = np.cumsum([0, *(group.num_rows for group in groups)])
        kind = file.schema_arrow.field(COLUMN).type
        is_binary = pa.types.is_fixed_size_binary(kind)
        width = kind.byte_width if is_binary else getattr(kind, "list_size", None)
        if width != dimension:
            problem = f"{path}: vectors of type {kind}, needed width {dimension}"
            raise CorruptFileError(f"{problem}; delete the file and relaunch")
        rows = np.arange(bounds[-1]) if rows is None else rows
        if len(rows) and rows[-1] >= bounds[-1]:
            raise CorruptFileError(
                f"{path}: {bounds[-1]:,} embeddings, but row {rows[-1]:,} is needed; delete the "
                "file and relaunch"
            )
        matrix: np.ndarray = np.empty((len(rows), dimension), dtype)
        starts = np.searchsorted(rows, bounds)
        for group in np.flatnonzero(np.diff(starts)).tolist():
            block = slice(*starts[group : group + 2])
            table = file.read_row_group(group, columns=[COLUMN, "scale"])
            if block.stop - block.start < table.num_rows:
                table = table.take(rows[block] - bounds[group])
            matrix[block] = _from_columns(table, dimension)
    return matrix


def row_groups(path: Path, dimension: int) -> Iterator[np.ndarray]:
    """Yield the vectors of each row group of an `embeddings/` file (`_from_columns`)."""
    with reading(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        for group in range(file.num_row_groups):
            yield _from_columns(file.read_row_group(group, columns=[COLUMN, "scale"]), dimension)
