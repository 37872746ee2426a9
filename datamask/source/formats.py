"""What JSON lines, CSV and Arrow files hold, as columns of one row per record.

Objects within a record of JSON become columns with dotted names (`metadata.url`). Lists, objects
with more than `MOST_KEYS` keys and values of mixed types become text. No text is taken for a date.
"""

from __future__ import annotations

import contextlib
import csv
import glob
import io
import json
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import pyarrow as pa

from datamask.errors import InputError, one_line
from datamask.source.opening import naming
from datamask.source.reading import cast_plain, plain_schema
from datamask.source.rows import json_objects

JSON_LINES, TABLES, ARROW = (".jsonl", ".ndjson", ".json"), (".csv", ".tsv"), (".arrow", ".feather")
COMPRESSIONS = ("", ".gz", ".zst")
CONVERTED = (*(kind + end for kind in JSON_LINES + TABLES for end in COMPRESSIONS), *ARROW)
"""Ends of names of the files that are converted to Parquet before they are read."""

MOST_KEYS, MOST_DEPTH = 100, 4
"""An object with more keys, or deeper within a record, is one column of text."""

RECORD_BYTES = 2**27
"""Most bytes of a line of JSON or CSV."""

ROWS_AT_ONCE = 4096

KEYS = b"keys"
"""Where a column of JSON keeps the pointer to its values."""

_TYPES = {
    "BIGINT": pa.int64(),
    "UBIGINT": pa.uint64(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
}
_EXACT = "^[+-]?(0[0-9]|[0-9]{19})"
"""What begins so is text in CSV: as a number it would lose its leading zeros or last digits."""

_SQL_TYPES = {kind: name for name, kind in _TYPES.items()}


def check_whole(path: str, name: str) -> None:
    """Refuse a local file that was cut off: DuckDB leaves out its last rows without a word.

    Messages have *name*, whose ending tells the format.

    Raises:
        InputError: compressed bytes or a quoted value have no end, or a row of CSV does not have a
            value for each column.
    """
    with naming(name), _decompressed(path) as file:
        if name.lower().endswith(tuple(kind + end for kind in TABLES for end in COMPRESSIONS)):
            _check_rows(file, name)
        elif name.lower().endswith(".zst"):
            while file.read(2**20):
                pass


def look_into(
    path: str, name: str, most_bad_lines: int, of_text: Collection[str]
) -> tuple[pa.Schema, int]:
    """Read a whole local file for its columns with their types, and its lines that are left out.

    The end of *name*, which stands in messages, tells the format. In CSV, fractions in columns
    *of_text* (in lower case) are text: as numbers, ids such as 2301.10140 would lose digits.

    Raises:
        InputError: the file cannot be read, or has more than *most_bad_lines* that are no objects.
    """
    with naming(name):
        if name.lower().endswith(ARROW):
            with _open_arrow(path) as reader:
                return plain_schema(reader.schema), 0
        if _is_json(name):
            return _look_into_json(path, name, most_bad_lines)
        return _look_into_csv(path, name, of_text), 0


def read_records(path: str, name: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a file in order, in *schema*; columns that it lacks are null. As `look_into`."""
    with naming(name):
        if name.lower().endswith(ARROW):
            with _open_arrow(path) as reader:
                yield from (_fitted(batch, schema, name) for batch in reader)
            return
        query = _json_query(path, schema) if _is_json(name) else _csv_query(path, name)
        if query:
            yield from (_fitted(batch, schema, name) for batch in _batches(query, name))


def merge_schemas(schemas: Iterable[tuple[str, pa.Schema]]) -> pa.Schema:
    """One schema with the columns of all files; a column whose types do not fit together is text.

    Raises:
        InputError: different values would be one column.
    """
    merged: dict[str, pa.Field] = {}
    for name, schema in schemas:
        for field in schema:
            known, kind = merged.get(field.name, field), pa.string()
            pointers = {of.metadata[KEYS] for of in (known, field) if of.metadata}
            if len(pointers) > 1 or schema.names.count(field.name) > 1:
                problem = "two values have this name, such as key `m.a` and `a` in `m`; rename one"
                raise InputError(problem, path=name, column=field.name)
            with contextlib.suppress(pa.ArrowInvalid, pa.ArrowTypeError):
                pair = [pa.schema([known]), pa.schema([field])]
                kind = pa.unify_schemas(pair, promote_options="permissive").field(0).type
            keys = known.metadata or field.metadata  # where JSON has the values; others have none
            merged[field.name] = pa.field(field.name, kind, metadata=keys)
    return pa.schema(list(merged.values()))


def _fitted(batch: pa.RecordBatch, schema: pa.Schema, name: str) -> pa.RecordBatch:
    columns = []
    for field in schema:
        if field.name not in batch.schema.names:
            columns.append(pa.nulls(len(batch), field.type))
            continue
        try:
            columns.append(cast_plain(batch.column(field.name), field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            problem = f"does not fit type {field.type} of the other files ({one_line(error)})"
            raise InputError(problem, path=name, column=field.name) from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _is_json(name: str) -> bool:
    return name.lower().endswith(tuple(kind + end for kind in JSON_LINES for end in COMPRESSIONS))


def _open_arrow(path: str) -> Any:
    """A reader of an Arrow file, or of a stream, as `datasets` writes."""
    file = pa.memory_map(path)
    try:
        opened = pa.ipc.open_file(file)
        return pa.RecordBatchReader.from_batches(
            opened.schema, (opened.get_batch(i) for i in range(opened.num_record_batches))
        )
    except pa.ArrowInvalid:
        return pa.ipc.open_stream(file)


def _batches(query: str, name: str) -> Iterator[pa.RecordBatch]:
    """The rows of a query in order, by one thread: files are converted side by side."""
    import duckdb

    try:
        with duckdb.connect(config={"threads": 1}) as connection:
            yield from connection.sql(query).to_arrow_reader(ROWS_AT_ONCE)
    except (duckdb.Error, OSError) as error:  # Arrow turns DuckDB's errors into OSError
        problem = f"cannot be read ({one_line(error)[:300]}); correct it"
        if "maximum_object_size" in problem:
            problem = f"a line is longer than {RECORD_BYTES >> 20} MiB; cut it, or leave it out"
        if "state machine" in problem:
            problem = "some rows end with a carriage return and some without; let all end alike"
        raise InputError(problem, path=name) from None


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _file(path: str) -> str:
    """SQL: one file and nothing else, though its name may be a pattern or `column=value`."""
    return f"{_quoted(glob.escape(path))}, hive_partitioning = false"


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _objects(path: str) -> str:
    """SQL: the lines of a file as `json`; null where they are not JSON. Blank lines are none."""
    return (
        f"read_json_objects({_file(path)}, format = 'newline_delimited', ignore_errors = true, "
        f"maximum_object_size = {RECORD_BYTES})"
    )


def _look_into_json(path: str, name: str, most_bad_lines: int) -> tuple[pa.Schema, int]:
    query = (
        "SELECT count(*) AS lines, count(*) FILTER (json_type(json) = 'OBJECT') AS rows, "
        "json_group_structure(CASE json_type(json) WHEN 'OBJECT' THEN json END)::VARCHAR AS "
        f"structure FROM {_objects(path)}"
    )
    [counts] = [row for batch in _batches(query, name) for row in batch.to_pylist()]
    bad = counts["lines"] - counts["rows"]
    if bad > most_bad_lines:
        raise _first_bad_line(path, name, bad)
    known = json.loads(counts["structure"]) if counts["rows"] else {}
    return pa.schema(list(_flat(known))), bad


def _json_query(path: str, schema: pa.Schema) -> str:
    """SQL: the records in the columns of a schema; empty without any."""
    fields = [field for field in schema if KEYS in (field.metadata or {})]
    pointers = ", ".join(_quoted(field.metadata[KEYS].decode()) for field in fields)
    columns = ", ".join(
        f"CAST(value[{number}] AS {_SQL_TYPES.get(field.type, 'VARCHAR')}) AS "
        + _identifier(field.name)
        for number, field in enumerate(fields, start=1)
    )
    query = (
        f"SELECT {columns} FROM (SELECT json_extract_string(json, [{pointers}]) AS value FROM "
        f"{_objects(path)} WHERE json_type(json) = 'OBJECT')"
    )
    return query if fields else ""


def _first_bad_line(path: str, name: str, count: int) -> InputError:
    more = f"{count} lines are not JSON objects; source.most_bad_lines leaves out so many"
    try:
        with _decompressed(path) as file:
            for _ in json_objects(file, name):
                pass
    except InputError as error:
        return InputError(f"{one_line(error)} ({more})")
    return InputError(more, path=name)


def _flat(structure: Any, keys: tuple[str, ...] = ()) -> Iterator[pa.Field]:
    """The columns of a structure of JSON, with the pointer to their values (RFC 6901)."""
    if isinstance(structure, dict) and len(keys) < MOST_DEPTH and len(structure) <= MOST_KEYS:
        for key, inner in structure.items():
            yield from _flat(inner, (*keys, key))
    elif keys:
        kind = _TYPES.get(structure, pa.string()) if isinstance(structure, str) else pa.string()
        steps = (key.replace("~", "~0").replace("/", "~1") for key in keys)
        yield pa.field(".".join(keys), kind, metadata={KEYS: "".join(f"/{step}" for step in steps)})


def _check_rows(file: io.BufferedReader[Any], name: str) -> None:
    csv.field_size_limit(RECORD_BYTES)
    # DuckDB names the row of a byte that is not UTF-8.
    with io.TextIOWrapper(file, "utf-8-sig", errors="replace", newline="") as text:
        rows = csv.reader(text, delimiter=_delimiter(name), strict=True)
        columns, row = len(next(rows, [])), -1
        try:
            for row, values in enumerate(filter(None, rows)):
                if len(values) != columns:
                    problem = f"{len(values)} values for {columns} columns; correct the row"
                    raise InputError(problem, path=name, row=row)
        except csv.Error as error:
            problem = f"not CSV ({error}); correct the row, or replace the file with a whole one"
            raise InputError(problem, path=name, row=row + 1) from None


def _delimiter(name: str) -> str:
    return "\t" if ".tsv" in name.lower() else ","


def _csv(path: str, name: str) -> tuple[list[str], str]:
    """The columns of a CSV file, and SQL: its rows, all values as text."""
    delimiter = _delimiter(name)
    with _decompressed(path) as file, io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
        names = next(csv.reader(text, delimiter=delimiter), [])
    header = [column or f"column{number}" for number, column in enumerate(names)]
    for column in header:
        if sum(other.lower() == column.lower() for other in header) > 1:
            problem = "occurs more than once; give every column its own name"
            raise InputError(problem, path=name, column=column)
    columns = ", ".join(f"{_quoted(column)}: 'VARCHAR'" for column in header)
    return header, (
        f"read_csv({_file(path)}, columns = {{{columns}}}, auto_detect = false, header = true, "
        f"""delim = {_quoted(delimiter)}, quote = '"', escape = '"', parallel = false, """
        f"max_line_size = {RECORD_BYTES})"
    )


def _look_into_csv(path: str, name: str, of_text: Collection[str]) -> pa.Schema:
    """A column of numbers holds nothing else, none with leading zeros or 19 digits, as ids have."""
    header, rows = _csv(path, name)
    if not header:
        return pa.schema([])
    are = ", ".join(
        f"bool_and(regexp_full_match({column}, '0|-?[1-9][0-9]{{0,17}}')), bool_and(TRY_CAST("
        f"{column} AS DOUBLE) IS NOT NULL AND NOT regexp_matches({column}, '{_EXACT}')) "
        f"FILTER ({column} IS NOT NULL)"
        for column in map(_identifier, header)
    )
    [answers] = [
        [column[0].as_py() for column in batch.columns]
        for batch in _batches(f"SELECT {are} FROM {rows}", name)
    ]
    fields = []
    for column, is_whole, is_number in zip(header, answers[::2], answers[1::2], strict=True):
        kind = pa.float64() if is_number and column.lower() not in of_text else pa.string()
        fields.append((column, pa.int64() if is_whole else kind))
    return pa.schema(fields)


def _csv_query(path: str, name: str) -> str:
    header, rows = _csv(path, name)
    return f"SELECT * FROM {rows}" if header else ""


def _decompressed(path: str) -> io.BufferedReader[Any]:
    return io.BufferedReader(pa.input_stream(path, compression="detect"))
