"""Read JSON lines, CSV and Arrow files as columns, with one row per record.

Objects within a record of JSON become columns with dotted names (`metadata.url`). Lists, objects
with more than `MOST_KEYS` keys and values of mixed types become text. Texts never become dates.
Numbers get the narrowest of three types that loses no digit (`_number_type`), or become text.
"""

from __future__ import annotations

import csv
import glob
import io
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from datamask.errors import InputError, one_line
from datamask.source.one_schema import KEYS, LARGE, fitted, pieces
from datamask.source.opening import naming
from datamask.source.originals import ARROW, JSON_LINES, TABLES
from datamask.source.reading import plain_schema
from datamask.source.rows import (
    RECORD_BYTES,
    bounded_lines,
    check_lines,
    first_bad_line,
    repair_lines,
    repeated_key,
)
from datamask.source.types import EXACT
from datamask.storage.unchanged import check_local

COMPRESSIONS = ("", ".gz", ".zst")
CONVERTED = (*(kind + end for kind in JSON_LINES + TABLES for end in COMPRESSIONS), *ARROW)
"""Ends of names of the files that are converted to Parquet before they are read."""

MOST_KEYS, MOST_DEPTH = 100, 4
"""An object with more keys, or deeper within a record, is one column of text."""

ROWS_AT_ONCE = 4096
"""Rows of a text file that are converted together."""

_NUMBERS = ("BIGINT", "UBIGINT", "HUGEINT", "DOUBLE")
"""DuckDB's types of a column of JSON whose values are numbers."""

_SQL_TYPES = {
    pa.int64(): "BIGINT",
    pa.uint64(): "UBIGINT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
}
_WHOLE, _DIGITS = "-?[1-9][0-9]*|0", "[+-]?[0-9]+"
_NUMBER = "[+-]?((([1-9][0-9]*|0)([.][0-9]*)?|[.][0-9]+)([eE][+-]?[0-9]+)?|(?i:nan|inf|infinity))"
"""Spellings of numbers. One with leading zeros may be an id, and is text."""


def check_whole(path: str, name: str) -> None:
    """Refuse a local file that was cut off: DuckDB leaves out its last rows without a word.

    Messages call the file *name*, whose ending gives the format.

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
    path: str, name: str, most_bad_lines: int, of_text: Collection[str], repaired_copy: Path
) -> tuple[pa.Schema, int, int]:
    """Read a whole local file; return its columns with types, and two counts.

    The first counts the JSON lines that are left out, the second lone surrogates; if there are
    some, `repair` writes *repaired_copy*. Messages call the file *name*, whose ending gives the
    format. In CSV, fractions in columns *of_text* (in lower case) are text: as numbers, ids such as
    2301.10140 would lose digits.

    Raises:
        InputError: the file cannot be read, or more than *most_bad_lines* lines are not objects.
    """
    with naming(name):
        check_local(path, name)
        if name.lower().endswith(ARROW):
            with _open_arrow(path) as reader:
                return plain_schema(reader.schema), 0, 0
        if _is_json(name):
            return _look_into_json(path, name, most_bad_lines, repaired_copy)
        return _look_into_csv(path, name, of_text), 0, 0


def repair(path: str, name: str, copy: Path) -> int:
    """Copy JSON lines, with U+FFFD in place of each lone surrogate; count them."""
    with naming(name), _decompressed(path) as file:
        return repair_lines(file, name, copy)


def read_records(path: str, name: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in order, in *schema*, null where it has none; see `look_into`."""
    with naming(name):
        if name.lower().endswith(ARROW):
            with _open_arrow(path) as reader:
                yield from fitted(pieces(reader), schema, name)
            return
        if _is_json(name):
            query = _json_query(path, schema)
        else:
            header, rows = _csv(path, name)
            query = f"SELECT * FROM {rows}" if header else ""
        if query:
            yield from fitted(_batches(query, name), schema, name)


def _is_json(name: str) -> bool:
    return name.lower().endswith(tuple(kind + end for kind in JSON_LINES for end in COMPRESSIONS))


def _open_arrow(path: str) -> Any:
    """Open an Arrow file, or a stream as `datasets` writes it."""
    file = pa.memory_map(path)
    try:
        opened = pa.ipc.open_file(file)
        return pa.RecordBatchReader.from_batches(
            opened.schema, (opened.get_batch(i) for i in range(opened.num_record_batches))
        )
    except pa.ArrowInvalid:
        return pa.ipc.open_stream(file)


def _batches(query: str, name: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a query in order, by one thread: files are converted side by side."""
    import duckdb

    try:
        with duckdb.connect(config={"threads": 1}) as connection:
            yield from connection.sql(query).to_arrow_reader(ROWS_AT_ONCE)
    except (duckdb.Error, OSError) as error:  # Arrow turns DuckDB's errors into OSError.
        problem = f"cannot be read ({one_line(error)[:300]}); correct it"
        if "maximum_object_size" in problem:
            problem = f"a line is longer than {RECORD_BYTES >> 20} MiB; cut it, or leave it out"
        if "Maximum line size" in problem:
            most = f"more than {RECORD_BYTES >> 20} MiB"
            problem = f"a row, or blank lines one after another, of {most}; take them out"
        if "state machine" in problem:
            problem = "some rows end with a carriage return and some without; let all end alike"
        raise InputError(problem, path=name) from None


def _rows(query: str, name: str) -> list[list[Any]]:
    """Return the rows of a query with few of them, as plain values."""
    return [[*row.values()] for batch in _batches(query, name) for row in batch.to_pylist()]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _file(path: str) -> str:
    """Return SQL for exactly one file, even if its name looks like a pattern or `column=value`."""
    return f"{_quoted(glob.escape(path))}, hive_partitioning = false"


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _objects(path: str) -> str:
    """Return SQL for the lines of a file as `json`, null if not JSON, without blank lines."""
    return (
        f"read_json_objects({_file(path)}, format = 'newline_delimited', ignore_errors = true, "
        f"maximum_object_size = {RECORD_BYTES})"
    )


def _look_into_json(
    path: str, name: str, most_bad_lines: int, repaired_copy: Path | None
) -> tuple[pa.Schema, int, int]:
    query = (
        "SELECT count(*) AS lines, count(*) FILTER (json_type(json) = 'OBJECT') AS rows, "
        "json_group_structure(CASE json_type(json) WHEN 'OBJECT' THEN json END)::VARCHAR AS "
        f"structure FROM {_objects(path)}"
    )
    try:
        [counts] = [row for batch in _batches(query, name) for row in batch.to_pylist()]
        known = json.loads(counts["structure"]) if counts["rows"] else {}
    except (InputError, RecursionError):
        with _decompressed(path) as file:
            check_lines(file, name)
        raise
    bad = counts["lines"] - counts["rows"]
    # DuckDB leaves lines with lone surrogates out.
    if bad and repaired_copy and (lone := repair(path, name, repaired_copy)):
        return *_look_into_json(str(repaired_copy), name, most_bad_lines, None)[:2], lone
    if bad > most_bad_lines:
        with _decompressed(path) as file:
            raise first_bad_line(file, name, bad)
    return _json_schema(path, name, list(_flat(known))), bad, 0


def _json_schema(path: str, name: str, columns: list[tuple[str, str, str]]) -> pa.Schema:
    """Return the schema of a JSON file, from name, pointer and DuckDB's type of each column.

    Raises:
        InputError: an object has a key twice; some readers take the first value and some the last.
    """
    keys = (
        f"json_keys(json, {_quoted(at)})" for at in {p.rpartition("/")[0] for _, p, _ in columns}
    )
    repeated = " OR ".join(f"len({of}) > len(list_distinct({of}))" for of in sorted(keys))
    numbers = [pointer for _, pointer, kind in columns if kind in _NUMBERS]
    figures = ", ".join(_figures(f"value[{place}]") for place in range(1, len(numbers) + 1))
    query = (
        f"SELECT {figures or 'NULL'}, bool_or(repeated) FROM (SELECT {repeated or 'false'} AS "
        f"repeated, json_extract_string(json, [{', '.join(map(_quoted, numbers))}]) AS value "
        f"FROM {_objects(path)} WHERE json_type(json) = 'OBJECT')"
    )
    [[*answers, is_repeated]] = _rows(query, name)
    if is_repeated:
        with _decompressed(path) as file:
            raise repeated_key(file, name)
    types = dict(zip(numbers, map(_number_type, answers), strict=False))
    fields = []
    for column, pointer, kind in columns:
        type_of = pa.bool_() if kind == "BOOLEAN" else pa.string()
        type_of, marks = types.get(pointer, (type_of, {}))
        fields.append(pa.field(column, type_of, metadata={KEYS: pointer, **marks}))
    return pa.schema(fields)


def _figures(value: str) -> str:
    """Return SQL for the facts that `_number_type` needs of a column of texts."""
    whole = f"CASE WHEN regexp_full_match({value}, '{_DIGITS}') THEN {value} END"
    number = f"TRY_CAST({whole} AS HUGEINT)"
    return (
        f"[bool_and(regexp_full_match({value}, '{_WHOLE}'))::INTEGER, "
        f"bool_and(regexp_full_match({value}, '{_NUMBER}'))::INTEGER, "
        f"bool_or({whole} IS NOT NULL AND {number} IS NULL)::INTEGER, "
        f"min({number}), max({number})]::VARCHAR[]"
    )


def _number_type(figures: list[str | None]) -> tuple[pa.DataType, dict[bytes, bytes]]:
    """Return the type of a column that loses no digit, and `LARGE` where a double would."""
    is_whole, is_number, is_beyond, low, high = (int(figure or 0) for figure in figures)
    is_large = is_beyond or max(-low, high) > EXACT
    marks = {LARGE: b""} if is_large else {}
    if is_whole and not is_beyond:
        if low >= -(2**63) and high < 2**63:
            return pa.int64(), marks
        if low >= 0 and high < 2**64:
            return pa.uint64(), marks
    return pa.float64() if is_number and not is_large else pa.string(), marks


def _json_query(path: str, schema: pa.Schema) -> str:
    """Return SQL for the records in the columns of a schema; empty without any."""
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


def _flat(structure: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[str, str, str]]:
    """Yield name, pointer to the values (RFC 6901) and type of each column of a JSON structure."""
    if isinstance(structure, dict) and len(keys) < MOST_DEPTH and len(structure) <= MOST_KEYS:
        for key, inner in structure.items():
            yield from _flat(inner, (*keys, key))
    elif keys:
        steps = (key.replace("~", "~0").replace("/", "~1") for key in keys)
        kind = structure if isinstance(structure, str) else "VARCHAR"
        yield ".".join(keys), "".join(f"/{step}" for step in steps), kind


def _check_rows(file: io.BufferedReader[Any], name: str) -> None:
    csv.field_size_limit(RECORD_BYTES)
    # DuckDB names the row of a byte that is not UTF-8.
    with io.TextIOWrapper(file, "utf-8-sig", errors="replace", newline="") as text:
        rows = csv.reader(bounded_lines(text, name), delimiter=_delimiter(name), strict=True)
        columns = len(next(rows, []))
        try:
            for values in filter(None, rows):
                if len(values) != columns:
                    problem = f"{len(values):,} values for {columns:,} columns; correct the row"
                    raise InputError(problem, path=name, line=rows.line_num)
        except csv.Error as error:
            problem = f"not CSV ({error}); correct the row, or replace the file with a whole one"
            raise InputError(problem, path=name, line=rows.line_num) from None


def _delimiter(name: str) -> str:
    return "\t" if ".tsv" in name.lower() else ","


def _csv(path: str, name: str) -> tuple[list[str], str]:
    """Return the columns of a CSV file, and SQL for its rows, all values as text."""
    delimiter = _delimiter(name)
    with _decompressed(path) as file, io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
        names = next(csv.reader(bounded_lines(text, name), delimiter=delimiter), [])
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
    """Return the schema of a CSV file; a text column may have only whole numbers."""
    header, rows = _csv(path, name)
    if not header:
        return pa.schema([])
    texts = [column.lower() in of_text for column in header]
    values = (
        _identifier(column) if is_text else f"trim({_identifier(column)})"
        for column, is_text in zip(header, texts, strict=True)
    )
    [answers] = _rows(f"SELECT {', '.join(map(_figures, values))} FROM {rows}", name)
    fields = []
    for column, is_text, figures in zip(header, texts, answers, strict=True):
        kind, marks = _number_type(figures)
        kind = pa.string() if is_text and pa.types.is_floating(kind) else kind
        fields.append(pa.field(column, kind, metadata=marks))
    return pa.schema(fields)


def _decompressed(path: str) -> io.BufferedReader[Any]:
    return io.BufferedReader(pa.input_stream(path, compression="detect"))
