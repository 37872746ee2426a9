"""Groups of documents by the source's columns: dump, language, domain, and `source.groups`.

DuckDB computes the SQL expressions of `source.groups` row by row. Planning refuses an expression
that looks at other rows, at files or at the clock. Values become text; a blank one becomes null,
and the document then has no group of this kind. The classes of classifiers come from stage
`classes`.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from datamask.config.compute import Compute
from datamask.config.group import OF_SOURCE
from datamask.config.inputs import Source
from datamask.errors import InputError, SettingsError
from datamask.runs import schemas
from datamask.runs.in_progress import advance
from datamask.runs.output import write_output
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run
from datamask.source.columns import domains, named
from datamask.source.reading import read_shard, source_schema


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _columns_in(expression: str, known: Iterable[str]) -> list[str]:
    """Return the columns that an expression may read: those whose names occur in it."""
    return [name for name in known if name.lower() in expression.lower()]


def group_columns(source: Source, kind: str, known: Iterable[str]) -> list[str]:
    """Return which of the columns *known* make a kind of groups, other than a classifier's."""
    if kind in OF_SOURCE:
        return [source.columns.of_group(kind)]
    return _columns_in(source.expressions[kind], known)


def group_problems(source: Source, schema: pa.Schema) -> Iterator[SettingsError]:
    """Yield an error for each expression of `source.groups` that DuckDB refuses.

    A CHECK constraint accepts the same expressions: no other rows, no subqueries, one statement.
    """
    import duckdb

    for name, expression in source.expressions.items():
        table = schema.empty_table().select(_columns_in(expression, schema.names))
        with _database() as connection:
            kinds = {}
            if table.num_columns:
                relation = connection.from_arrow(table)
                kinds = dict(zip(relation.columns, relation.types, strict=True))
            columns = "".join(f"{_quoted(column)} {kind}, " for column, kind in kinds.items())
            try:
                connection.execute(
                    f"CREATE TABLE source ({columns}own INT, CHECK (({expression})::VARCHAR = ''))"
                )
                if problem := _instability(connection, expression):
                    yield SettingsError(f"source.groups.{name}: {expression}: {problem}")
            except duckdb.Error as error:
                yield SettingsError(
                    f"source.groups.{name}: {expression}: {_reason(error)}; the source's columns "
                    f"are {', '.join(schema.names)}"
                )


def _instability(connection: Any, expression: str) -> str:
    """Say which function in an expression reads the clock, chance or a setting; empty if none."""
    [[parsed]] = connection.execute(
        "SELECT json_serialize_sql(?)", [f"SELECT {expression}"]
    ).fetchall()
    if json.loads(parsed)["error"]:
        return "give one expression"
    called = re.findall(r'"function_name":"([^"]*)"', parsed)
    # `age` of one argument reads the clock; others of its kind have no such form.
    [[named]] = connection.execute(
        "SELECT min(function_name) FROM (SELECT function_name FROM duckdb_functions() "
        "WHERE list_contains(?, function_name) GROUP BY function_name "
        "HAVING function_name = 'age' OR bool_and(stability <> 'CONSISTENT'))",
        [called],
    ).fetchall()
    problem = "reads more than the row, so two runs could differ; use the columns alone"
    return f"function {named} {problem}" if named else ""


def _reason(error: Exception) -> str:
    """Return DuckDB's reason, without the statement and the constraint that are not the user's."""
    first = str(error).partition("\n")[0]
    return re.sub(r"(referenced )?in check constraints?!?", "", first, flags=re.I).strip()


def _database() -> Any:
    """Open an empty database that reads no files, and writes times alike on every machine."""
    import duckdb

    off = ("enable_external_access", "autoload_known_extensions", "autoinstall_known_extensions")
    connection = duckdb.connect(config={"threads": 1, **dict.fromkeys(off, "false")})
    with contextlib.suppress(duckdb.Error):  # Without the extension icu, times are in UTC anyway.
        connection.execute("SET TimeZone = 'UTC'")
    return connection


class SourceGroups:
    """Compute the groups of documents, of some kinds, from columns of the source.

    Args:
        source: names the columns, and has the expressions.
        kinds: names of kinds that columns define (`OF_SOURCE`, or in `Source.expressions`).
        known: columns of the source.
    """

    def __init__(self, source: Source, kinds: Iterable[str], known: Collection[str]) -> None:
        self.source, self.kinds = source, list(kinds)
        read = [name for kind in self.kinds for name in group_columns(source, kind, known)]
        # A batch without columns would not say how many rows it has.
        self.columns = list(dict.fromkeys(read)) or [source.id_column]
        """Columns of the source that the groups are made of."""
        self.database = _database() if {*self.kinds} & source.expressions.keys() else None

    def of(self, batch: pa.RecordBatch, path: str) -> dict[str, pa.Array]:
        """Return the groups of a batch with these columns, by kind; text, null without a group.

        Raises:
            InputError: an expression fails for one of the values; it names *path*.
        """
        groups: dict[str, pa.Array] = {}
        for kind in self.kinds:
            if kind in OF_SOURCE:
                values = batch.column(self.source.columns.of_group(kind)).cast(pa.string())
                groups[kind] = named(domains(values) if kind == "domain" else values)
            else:
                groups[kind] = named(self._computed(kind, batch, path))
        return groups

    def _computed(self, kind: str, batch: pa.RecordBatch, path: str) -> pa.Array:
        import duckdb

        assert self.database is not None
        with self.database.cursor() as connection:
            connection.register("source", batch)
            try:
                made = connection.sql(
                    f"SELECT ({self.source.expressions[kind]})::VARCHAR FROM source"
                )
                column = made.to_arrow_table().column(0).cast(pa.string())
            except duckdb.Error as error:
                problem = f"{_reason(error)}; correct the value, or use try_cast"
                column = f"source.groups.{kind}"
                raise InputError(problem, path=path, column=column) from None
        return column.combine_chunks()


def name_groups(run: Run, shard: int, compute: Compute) -> Receipt:
    """Write `groups/NNNNN.parquet`: each document's groups of `source.groups`.

    Raises:
        InputError: an expression fails for a value, or the source cannot be read.
    """
    source = run.settings.source
    rows = run.shard_rows(shard)
    columns = {"row": pa.array(range(rows), pa.int64())}
    columns |= read_groups(run, shard, [*source.groups])
    advance(rows, rows)
    schema = schemas.groups(source.groups)
    return write_output(run, "groups", shard, schema, [pa.table(columns, schema=schema)], {})


def read_groups(
    run: Run, shard: int, kinds: Sequence[str], rows: np.ndarray | None = None
) -> dict[str, pa.ChunkedArray]:
    """Read the groups of a shard's documents, or of some *rows*, by kind; text, null for none.

    Raises:
        InputError: an expression fails for a value, or the source cannot be read.
        RunError: the classes of a classifier are missing or stale.
    """
    source = run.settings.source
    of_columns = [kind for kind in kinds if kind not in source.classifiers]
    groups: dict[str, pa.ChunkedArray] = {}
    if of_columns:
        made = SourceGroups(source, of_columns, source_schema(run).names)
        batches = read_shard(run, shard, made.columns, rows, has_text=False)
        chunks = [made.of(batch, source.path) for batch in batches]
        groups |= {k: pa.chunked_array([of[k] for of in chunks], pa.string()) for k in of_columns}
    if classes := [kind for kind in kinds if kind in source.classifiers]:
        run.receipt("classes", shard)
        table = run.read_output("classes", shard, classes)
        table = table if rows is None else table.take(pa.array(rows))
        groups |= {kind: named(table[kind].combine_chunks()) for kind in classes}
    return {kind: groups[kind] for kind in kinds}
