"""Choose one type for a column over all files, by one rule, when a run is planned.

A column has the widest of its types if that holds every value of every file; else it is text, each
value as its file spells it; else the source is refused. Whole numbers of 64 bits and fractions are
widened to doubles only if no whole number is beyond `EXACT`: hashes and ids keep their digits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq

from datamask.errors import DatamaskError, InputError, together
from datamask.source.columns import has_text
from datamask.source.opening import is_remote, open_parquet
from datamask.source.reading import plain_schema

EXACT = 2**53
"""Every whole number up to this one, and down to its negative, is a double."""


def widened(
    one: pa.DataType, other: pa.DataType, are_exact: Callable[[], bool]
) -> pa.DataType | None:
    """Return the type that holds all values of two types without encoding; None if there is none.

    *are_exact* returns True if all whole numbers of 64 bits of these columns are within `EXACT`.
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
        return pa.float64() if whole.bit_width <= 32 or are_exact() else text
    if any(map(types.is_decimal, pair)) and any(map(types.is_floating, pair)):
        return text
    try:
        schemas = [pa.schema([("column", kind)]) for kind in pair]
        merged = pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return text if all(map(has_text, pair)) else None
    return merged if not types.is_nested(merged) or are_exact() else None


def _integer(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the narrowest whole-number type that holds both; None if 64 bits do not."""
    signed = [pa.types.is_signed_integer(kind) for kind in (one, other)]
    if signed[0] == signed[1]:
        return max(one, other, key=lambda kind: int(kind.bit_width))
    pairs = zip((one, other), signed, strict=True)
    bits = max(kind.bit_width * (1 if is_signed else 2) for kind, is_signed in pairs)
    return {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}.get(bits)


def unify_schemas(schemas: Iterable[tuple[str, pa.Schema]]) -> pa.Schema:
    """Return the one schema of all Parquet files, from path and plain schema of each.

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
    problems = [problem for group in groups for problem in _name_problems(group, groups[0])]
    if problems:
        raise together(problems)
    fields = []
    for field in groups[0][0]:
        kinds: dict[pa.DataType, list[str]] = {}
        for schema, paths in groups:
            kinds.setdefault(schema.field(field.name).type, []).extend(paths)
        kind, found = _type_of_all(field.name, kinds)
        fields.append(pa.field(field.name, kind))
        problems += found
    if problems:
        raise together(problems)
    return pa.schema(fields)


def _name_problems(
    group: tuple[pa.Schema, list[str]], first: tuple[pa.Schema, list[str]]
) -> list[DatamaskError]:
    (schema, paths), (known, others) = group, first
    if repeated := sorted(name for name in {*schema.names} if schema.names.count(name) > 1):
        problem = "occurs more than once in the file; give every column its own name"
        return [InputError(problem, path=path, column=repeated[0]) for path in paths]
    problems: list[DatamaskError] = []
    for name in sorted({*schema.names} ^ {*known.names}):
        for path in paths:
            pair = (path, others[0]) if name in known.names else (others[0], path)
            problem = f"absent, but {pair[1]} has it; give all files the same columns"
            problems.append(InputError(problem, path=pair[0], column=name))
    return problems


def _type_of_all(
    name: str, kinds: dict[pa.DataType, list[str]]
) -> tuple[pa.DataType, list[DatamaskError]]:
    """Return the type of a column that has these types in different files; and problems, if any."""
    merged, *others = kinds
    first, problems = kinds[merged][0], list[DatamaskError]()
    large = [path for kind in kinds if _may_be_large(kind) for path in kinds[kind]]
    for other in others:
        kind = widened(merged, other, lambda: are_exact(large, name))
        if kind is None:
            problem = (
                f"type {other} does not fit {merged} in {first}; give all files the same types"
            )
            problems += [InputError(problem, path=path, column=name) for path in kinds[other]]
        merged = kind or merged
    return merged, problems


def _may_be_large(kind: pa.DataType) -> bool:
    is_whole: bool = pa.types.is_integer(kind) and kind.bit_width == 64
    return is_whole or bool(pa.types.is_nested(kind))


def are_exact(paths: Sequence[str], column: str) -> bool:
    """Return True if Parquet footers exclude whole numbers beyond `EXACT` in a column."""

    def is_exact(path: str) -> bool:
        with open_parquet(path) as file:
            groups = map(file.metadata.row_group, range(file.num_row_groups))
            chunks = (group.column(place) for group in groups for place in range(group.num_columns))
            return all(_is_exact(chunk, column) for chunk in chunks)

    with ThreadPoolExecutor(16 if any(map(is_remote, paths)) else 2) as pool:
        return all(pool.map(is_exact, paths))


def _is_exact(chunk: pq.ColumnChunkMetaData, column: str) -> bool:
    """Return True if a chunk belongs to another column, or has no whole numbers beyond `EXACT`."""
    is_inside = f"{chunk.path_in_schema}.".startswith(f"{column}.")
    if not is_inside or chunk.physical_type != "INT64":
        return True
    statistics = chunk.statistics
    if statistics is None or not statistics.has_min_max:
        nulls = 0 if statistics is None else statistics.null_count
        return bool(nulls == chunk.num_values)
    return all(
        not isinstance(one, int) or abs(one) <= EXACT for one in (statistics.min, statistics.max)
    )
