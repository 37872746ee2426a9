"""Decide which column types can hold texts, ids or scores; find missing values and group names."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from datamask.config.scores import Score
from datamask.errors import InputError
from datamask.source.reading import plain_type


def is_text(kind: pa.DataType) -> bool:
    """Return True if a column of this type holds text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def has_text(kind: pa.DataType) -> bool:
    """Return True if each value of this type converts to one text, as dates and numbers do."""
    try:
        pa.nulls(0, kind).cast(pa.string())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return False
    return True


def is_id(kind: pa.DataType) -> bool:
    """Return True if a column of this type can hold ids: a value has exactly one spelling."""
    kind = plain_type(kind)
    return is_text(kind) or bool(pa.types.is_integer(kind))


def is_numeric(kind: pa.DataType) -> bool:
    """Return True if a column of this type can hold scores. A column without values can."""
    types = pa.types
    checks = (types.is_integer, types.is_floating, types.is_decimal, types.is_null)
    return any(check(kind) for check in checks)


LARGEST_EXACT = 2**53
"""Float64 holds every whole number up to this one, and then only every second."""

INEXACT = "a whole number above 2⁵³, which float64 confuses with its neighbours; divide it first"


def first_inexact(values: pa.Array | pa.ChunkedArray) -> int | None:
    """Return the row of the first whole number above `LARGEST_EXACT` in a numeric column, or None.

    Scores are float64, which cannot distinguish such numbers from their neighbours.
    """
    kind = values.type
    if not (kind in (pa.int64(), pa.uint64()) or pa.types.is_decimal(kind)):
        return None
    # Arrow compares unsigned numbers only with their own type.
    bound = pa.scalar(LARGEST_EXACT, pa.uint64() if kind == pa.uint64() else pa.int64())
    above = pc.greater(values, bound)
    below = above if kind == pa.uint64() else pc.less(values, -LARGEST_EXACT)
    row: int = pc.index(pc.fill_null(pc.or_(above, below), False), True).as_py()
    return row if row >= 0 else None


def is_vector(kind: pa.DataType) -> bool:
    """Return True if a column of this type can hold vectors: lists of floats or int8."""
    types = pa.types
    is_list = types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind)
    return bool(is_list and (types.is_floating(kind.value_type) or types.is_int8(kind.value_type)))


def feature_problem(kind: pa.DataType, width: int) -> str:
    """Return the problem of an embedding column's type; empty if there is none."""
    if not is_vector(kind):
        return f"type {kind}, needed a list of floats or int8, as Parquet and Arrow files have"
    if pa.types.is_fixed_size_list(kind) and kind.list_size != width:
        return f"{kind.list_size} numbers wide; set embedding.dimension ({width}) to that"
    return ""


def missing_score(score: Score, count: int, path: str, row: int) -> InputError:
    """Return the error about *count* documents without a score, the first at *path* and *row*."""
    return InputError(
        f"score missing, NaN or infinite in {count:,} documents; fix them, or set missing of score "
        f"{score.name} to `drop` or to a number",
        path=path,
        row=row,
        column=score.source_column or score.name,
    )


def usable(values: pa.Array) -> pa.Array:
    """Return which scores are present and finite; bool, of the same length."""
    return pc.fill_null(pc.is_finite(values.cast(pa.float64(), safe=False)), False)


MOST_TOKENS = 2**40
"""Maximum tokens of one document: more than any text has, and corpus sums stay 64-bit integers."""


def whole_tokens(values: pa.Array) -> tuple[pa.Array, int]:
    """Return token counts as int64, null where null, NaN or infinite; and a bad row, or -1.

    The row is the first whose number is negative, not whole or above `MOST_TOKENS`.
    """
    known = values.cast(pa.float64(), safe=False)
    numbers = pc.if_else(usable(known), known, pa.scalar(None, pa.float64()))
    odd = pc.not_equal(pc.floor(numbers), numbers)
    odd = pc.or_(odd, pc.or_(pc.less(numbers, 0), pc.greater(numbers, MOST_TOKENS)))
    return numbers.cast(pa.int64(), safe=False), int(pc.index(odd, True).as_py())


_HOST = r"^(?:[A-Za-z][A-Za-z0-9+.-]*:)?//(?:[^/?#@]*@)?(?P<host>\[[^\]/]*\]|[^/?#:]+)"


def domains(urls: pa.Array) -> pa.Array:
    """Return the host of each address in lower case, without `www.`; null where there is none."""
    hosts = pc.struct_field(pc.extract_regex(urls, _HOST), 0)
    return pc.replace_substring_regex(pc.utf8_lower(hosts), r"^www\.", "")


def named(names: pa.Array) -> pa.Array:
    """Return names of groups; blank names become null."""
    blank = pc.equal(pc.utf8_trim_whitespace(names), "")
    return pc.if_else(pc.fill_null(blank, False), pa.scalar(None, pa.string()), names)
