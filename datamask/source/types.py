"""Choose one type for a column over all files, by one rule, when a run is planned.

A column has the widest of its types if that holds every value of every file; else it is text, each
value as its file spells it; else the source is refused. Whole numbers of 64 bits and fractions are
widened to doubles only if no whole number is beyond `EXACT`: hashes and ids keep their digits.
Times get the finest of their units only if all are within its range (years 1678 to 2261 for ns).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq

from datamask.errors import DatamaskError, InputError, together
from datamask.source.columns import has_text
from datamask.source.opening import is_remote, open_parquet
from datamask.source.reading import plain_schema

EXACT = 2**53
"""Every whole number up to this one, and down to its negative, is a double."""


UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""Units of times, in one second."""


def widened(
    one: pa.DataType, other: pa.DataType, are_exact: Callable[[pa.DataType], bool]
) -> pa.DataType | None:
    """Return the type that holds all values of two types without encoding; None if there is none.

    *are_exact* returns True if a type holds all values of these columns: as doubles if whole
    numbers are within `EXACT`, as times of its unit if they are within its range.
    """
    types, text = pa.types, pa.large_string()
    if one.equals(other) or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    pair = (one, other)
    if all(map(types.is_integer, pair)):
        return _integer(*pair) or text
    if any(map(types.is_integer, pair)) and any(map(types.is_floating, pair)):
        whole = one if types.is_integer(one) else other
        return pa.float64() if whole.bit_width <= 32 or are_exact(pa.float64()) else text
    if any(map(types.is_decimal, pair)) and any(map(types.is_floating, pair)):
        return text
    try:
        schemas = [pa.schema([("column", kind)]) for kind in pair]
        merged = pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return text if all(map(has_text, pair)) else None
    if types.is_nested(merged):
        keeps_units = {*_times(one), *_times(other)} <= {*_times(merged)}
        return merged if keeps_units and are_exact(merged) else None
    return merged if not _has_unit(merged) or are_exact(merged) else text


def _has_unit(kind: pa.DataType) -> bool:
    """Return True for numbers of 64 bits that count a unit of time."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_duration(kind))


def _times(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yield the times within a nested type."""
    if _has_unit(kind):
        yield kind
    for number in range(kind.num_fields):
        yield from _times(kind.field(number).type)


def _integer(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the narrowest whole-number type that holds both; None if 64 bits do not."""
    signed = [pa.types.is_signed_integer(kind) for kind in (one, other)]
    if signed[0] == signed[1]:
        return max(one, other, key=lambda kind: int(kind.bit_width))
    pairs = zip((one, other), signed, strict=True)
    bits = max(kind.bit_width * (1 if is_signed else 2) for kind, is_signed in pairs)
    return {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}.get(bits)


def unify_schemas(schemas: Iterable[tuple[str, pa.Schema]], union: bool = False) -> pa.Schema:
    """Return the one schema of all Parquet files, from path and plain schema of each.

    With *union*, a file may lack columns of other files; its rows have nulls there.

    Raises:
        InputError: columns are absent from a file, occur twice, or no type holds their values.
    """
    files: dict[int, tuple[pa.Schema, list[str]]] = {}  # Most of 100,000 files share one object.
    for path, schema in schemas:
        plain = plain_schema(schema)
        files.setdefault(id(plain), (plain, []))[1].append(path)
    if not files:
        raise InputError("no files")
    groups = [*files.values()]
    problems = [problem for group in groups for problem in _name_problems(group, groups[0], union)]
    if problems:
        raise together(problems)
    fields = []
    for name in dict.fromkeys(name for schema, _ in groups for name in schema.names):
        kinds: dict[pa.DataType, list[str]] = {}
        for schema, paths in groups:
            if name in schema.names:
                kinds.setdefault(schema.field(name).type, []).extend(paths)
        kind, of_column = _type_of_all(name, kinds)
        fields.append(pa.field(name, kind))
        problems += of_column
    if problems:
        raise together(problems)
    return pa.schema(fields)


def _name_problems(
    group: tuple[pa.Schema, list[str]], first: tuple[pa.Schema, list[str]], union: bool
) -> list[DatamaskError]:
    (schema, paths), (known, others) = group, first
    if repeated := sorted(name for name in {*schema.names} if schema.names.count(name) > 1):
        problem = "occurs more than once in the file; give every column its own name"
        return [InputError(problem, path=path, column=repeated[0]) for path in paths]
    problems: list[DatamaskError] = []
    for name in sorted({*schema.names} ^ {*known.names}) if not union else ():
        for path in paths:
            pair = (path, others[0]) if name in known.names else (others[0], path)
            problem = f"absent, but {pair[1]} has it; give all files the same columns, or set "
            problem += "source.union: true"
            problems.append(InputError(problem, path=pair[0], column=name))
    return problems


def _type_of_all(
    name: str, kinds: dict[pa.DataType, list[str]]
) -> tuple[pa.DataType, list[DatamaskError]]:
    """Return the type of a column that has these types in different files; and problems, if any."""
    merged, *others = kinds
    first, problems = kinds[merged][0], list[DatamaskError]()

    def are_exact(kind: pa.DataType) -> bool:
        return all(_are_within(paths, name, _bound(of, kind)) for of, paths in kinds.items())

    for other in others:
        kind = widened(merged, other, are_exact)
        if kind is None:
            problem = (
                f"type {other} does not fit {merged} in {first}; give all files the same types"
            )
            problems += [InputError(problem, path=path, column=name) for path in kinds[other]]
        merged = kind or merged
    return merged, problems


def _bound(kind: pa.DataType, target: pa.DataType) -> int | None:
    """Return the largest number of 64 bits that casts to *target*; None if any value does."""
    if _has_unit(kind) and _has_unit(target):
        return (2**63 - 1) * UNITS[kind.unit] // UNITS[target.unit]
    is_whole = pa.types.is_integer(kind) and kind.bit_width == 64
    return EXACT if is_whole or pa.types.is_nested(kind) else None


def _are_within(paths: Sequence[str], column: str, bound: int | None) -> bool:
    """Return True if Parquet footers exclude whole numbers or times beyond *bound* in a column."""
    if bound is None:
        return True

    def is_within(path: str) -> bool:
        with open_parquet(path) as file:
            is_time = _has_unit(file.schema_arrow.field(column).type)
            groups = map(file.metadata.row_group, range(file.num_row_groups))
            chunks = (group.column(place) for group in groups for place in range(group.num_columns))
            return all(_is_within(chunk, bound, is_time) for chunk in chunks if of_column(chunk))

    def of_column(chunk: pq.ColumnChunkMetaData) -> bool:
        return f"{chunk.path_in_schema}.".startswith(f"{column}.")

    with ThreadPoolExecutor(16 if any(map(is_remote, paths)) else 2) as pool:
        return all(pool.map(is_within, paths))


def _is_within(chunk: pq.ColumnChunkMetaData, bound: int, is_time: bool) -> bool:
    """Return True if a chunk has no whole number, or with *is_time* no time, beyond *bound*."""
    statistics = chunk.statistics
    if chunk.physical_type == "INT96":  # Times, which Arrow reads as ns.
        return bound == 2**63 - 1
    if chunk.physical_type != "INT64":
        return True
    if statistics is None or not statistics.has_min_max:
        nulls = 0 if statistics is None else statistics.null_count
        return bool(nulls == chunk.num_values)
    ends = (statistics.min, statistics.max)
    if is_time:
        ends = (statistics.min_raw, statistics.max_raw)
    return all(not isinstance(end, int) or abs(end) <= bound for end in ends)
