"""Take embeddings, texts and scores from the containers that notebooks hold.

NumPy arrays, tensors, Arrow data, pandas, polars, Hugging Face data sets and lists become a matrix
of unit rows, a list of texts or a vector of numbers. Arrays and fixed-size lists of float16 or
float32 that have unit rows are not copied. An object's methods show what it is: no library of a
container is imported. The same values give the same result in every container.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datamask.config.scores import LARGEST
from datamask.errors import InputError, one_line
from datamask.learning.norms import NORM_ROWS, NORM_TOLERANCE, row_norms
from datamask.source.columns import INEXACT, first_inexact, is_numeric, is_text
from datamask.source.reading import cast_plain, plain_type


def column_of(data: Any, name: str | None = None) -> Any:
    """Return a column of a table: the named one, or else the only one with embeddings or texts.

    Args:
        data: a table of Arrow, pandas, polars or Hugging Face datasets; anything else is returned.
        name: of the column; None finds it.

    Raises:
        InputError: no such column, or more than one, or two of one name.
    """
    is_dataset, is_arrow = hasattr(data, "with_format"), isinstance(data, pa.Table | pa.RecordBatch)
    if isinstance(data, dict) or (is_dataset and not hasattr(data, "__len__")):
        raise InputError(f"a {type(data).__name__}; give one split or table, with all its rows")
    if hasattr(data, "collect_schema") and not hasattr(data, "__len__"):
        raise InputError(f"a {type(data).__name__}; call its method collect() first")
    if hasattr(data, "to_arrow_table"):  # A query of DuckDB has an order of rows of its own.
        raise InputError(f"a {type(data).__name__}; call its method to_arrow_table() first")
    if not (is_dataset or is_arrow or hasattr(data, "columns")):
        if name is not None:
            raise InputError(f"a {type(data).__name__} has no columns", column=name)
        return data
    known = data.column_names if is_dataset or is_arrow else data.columns
    names = {str(column): column for column in known}
    repeated = Counter(map(str, known)) - Counter([*names])
    if repeated and (name is None or name in repeated):
        problem = "occurs more than once; give every column its own name"
        raise InputError(problem, column=name or min(repeated))
    if name is None:
        schema = data.features.arrow_schema if is_dataset else None
        schema = schema or (data.schema if is_arrow else pa.table(data.head(100)).schema)
        kinds = {column: plain_type(schema.field(column).type) for column in names}
        lists = [column for column, kind in kinds.items() if is_list(kind)]
        texts = [column for column, kind in kinds.items() if is_text(kind)]
        fitting = lists or ["text"] * ("text" in texts) or texts
        if len(fitting) != 1:
            problem = f"{len(fitting)} columns of embeddings or texts; name one with column="
            if all(map(is_numeric, kinds.values())):
                problem += ", or give to_numpy() if all columns together are the embedding"
            raise InputError(f"{problem}; there are {_shown(names)}")
        name = fitting[0]
    if name not in names:
        raise InputError(f"absent; there are {_shown(names)}", column=name)
    if is_dataset:
        return data.select_columns([name]).with_format("arrow")[:][name]
    return data[names[name]]


def _shown(names: Iterable[str], most: int = 20) -> str:
    listed = list(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" * (len(listed) > most))


def texts_or_matrix(data: Any) -> list[str] | np.ndarray:
    """Return N texts, or a matrix of unit rows, N x D, float16 or float32 (`unit_rows`).

    Raises:
        InputError: neither texts nor rows of numbers of one width; or a row is missing.
    """
    values = _numpy_or_arrow(data)
    if isinstance(values, np.ndarray):
        return unit_rows(values)
    kind = values.type
    if values.null_count:
        raise InputError("missing", row=int(pc.index(pc.is_null(values), True).as_py()))
    if is_text(kind):
        texts: list[str] = values.to_pylist()
        return texts
    if not is_list(kind):
        raise InputError(f"type {kind}; needed texts, or lists of numbers")
    widths = pc.list_value_length(values)
    width = widths[0].as_py() if len(values) else 0
    ragged = pc.index(pc.not_equal(widths, width), True).as_py()
    if ragged >= 0:
        problem = f"{widths[ragged].as_py()} numbers, but row 0 has {width}"
        raise InputError(f"{problem}; give every row as many", row=int(ragged))
    # A missing number becomes NaN, which `unit_rows` refuses.
    flat = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in values.chunks]
    whole = flat[0] if len(flat) == 1 else np.concatenate(flat or [np.zeros(0)])
    return unit_rows(whole.reshape(len(values), width))


def numbers(data: Any, rows: int, name: str, index: Any = None) -> np.ndarray:
    """Return a score of each document; float64, shape N.

    Args:
        data: one number per document.
        rows: N.
        name: for messages.
        index: of the documents, if they are in pandas; *data* must have the same.

    Raises:
        InputError: not N numbers of at most `LARGEST`, or in another order.
    """
    if index is not None and hasattr(data, "iloc") and not index.equals(data.index):
        problem = "its index differs from that of the documents"
        raise InputError(f"{problem}; align it, or use reset_index(drop=True)", column=name)
    values = _numpy_or_arrow(data)
    if not isinstance(values, np.ndarray):
        if not (is_numeric(values.type) or pa.types.is_boolean(values.type)):
            raise InputError(f"type {values.type}, needed a number", column=name)
        inexact = first_inexact(values)
        values = values.to_numpy()
    elif values.dtype.kind in "iu" and values.ndim == 1:
        inexact = first_inexact(pa.array(values))
    else:
        inexact = None
    if values.ndim != 1 or len(values) != rows:
        problem = f"shape {values.shape}, needed ({rows},): one number per document"
        raise InputError(problem, column=name)
    if inexact is not None:
        raise InputError(INEXACT, row=inexact, column=name)
    numbers_N = np.asarray(values, np.float64)
    wrong = np.flatnonzero(~(np.abs(numbers_N) <= LARGEST))
    if len(wrong):
        problem = f"missing, NaN or above {LARGEST:g}; fix it or drop the document"
        raise InputError(problem, row=int(wrong[0]), column=name)
    return numbers_N


def unit_rows(matrix: np.ndarray) -> np.ndarray:
    """Return the matrix if it has unit rows of float16 or float32, else a normalised float32 copy.

    Args:
        matrix: N x D, any numbers; a row's norm counts as 1 within `NORM_TOLERANCE`.

    Raises:
        InputError: not a matrix of numbers, or a row is zero, NaN or infinite.
    """
    if matrix.ndim != 2 or matrix.dtype.kind not in "fiu" or not matrix.size:
        problem = f"shape {matrix.shape} of {matrix.dtype}; needed rows of numbers, one a document"
        raise InputError(problem)
    norms = row_norms(matrix, np.float64)
    wrong = np.flatnonzero(~(np.isfinite(norms) & (norms > 0)))
    if len(wrong):
        is_zero = norms[wrong[0]] == 0
        problem = "all zeros, has no direction" if is_zero else "NaN or infinite number"
        raise InputError(f"{problem}; fix it or drop the document", row=int(wrong[0]))
    if matrix.dtype in (np.float16, np.float32) and (np.abs(norms - 1) <= NORM_TOLERANCE).all():
        return matrix
    unit = np.empty(matrix.shape, np.float32)
    for start in range(0, len(matrix), NORM_ROWS):
        part = slice(start, start + NORM_ROWS)
        np.divide(matrix[part], norms[part, None], out=unit[part])
    return unit


def is_list(kind: pa.DataType) -> bool:
    """Return True if each value of a column is a list of numbers."""
    types = pa.types
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(
        is_list and (types.is_floating(kind.value_type) or types.is_integer(kind.value_type))
    )


def _numpy_or_arrow(data: Any) -> np.ndarray | pa.ChunkedArray:
    """Return an array of numbers, or an Arrow column without encodings; views if possible."""
    if hasattr(data, "detach"):  # NumPy has no bfloat16, which a tensor may have.
        if str(data.layout) != "torch.strided":
            raise InputError(f"a tensor of layout {data.layout}; call its method to_dense() first")
        data = data.detach().cpu()
        return np.asarray((data.float() if str(data.dtype) == "torch.bfloat16" else data).numpy())
    if isinstance(data, np.ma.MaskedArray) and data.ndim > 1:  # Arrow takes one dimension
        data = np.ma.filled(data.astype(np.float64), np.nan)
    is_masked = isinstance(data, np.ma.MaskedArray)
    if isinstance(data, np.ndarray) and data.dtype.kind in "fiub" and not is_masked:
        return data
    if isinstance(data, str | bytes) or not hasattr(data, "__getitem__"):
        raise InputError(f"a {type(data).__name__}, not a list or an array; give all documents")
    try:
        if hasattr(data, "__arrow_c_stream__"):
            column = pa.chunked_array(data)
        else:
            array = data if isinstance(data, pa.Array) else pa.array(data, from_pandas=True)
            column = array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])
        return cast_plain(column, plain_type(column.type))
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"not texts, numbers or lists of numbers ({one_line(error)})") from None


def names_of(data: Any) -> list[str | None]:
    """Return a column of texts, whole numbers or the like as texts; None where missing.

    Raises:
        InputError: values have no text.
    """
    values = _numpy_or_arrow(data)
    try:
        column = pa.chunked_array([pa.array(values)]) if isinstance(values, np.ndarray) else values
        names: list[str | None] = column.cast(pa.string()).to_pylist()
        return names
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(f"no names of groups ({one_line(error)})") from None
