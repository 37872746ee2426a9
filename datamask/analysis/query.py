"""SQL on a run: its DuckDB file, its documents and the report's sample as a read-only database.

`relations.yaml` describes the tables and views; `datamask query RUN` prints it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from datamask.analysis.composition import open_composition
from datamask.errors import RunError, one_line
from datamask.runs.files import read_columns
from datamask.runs.run import Run


@functools.cache
def relations() -> dict[str, str]:
    """Tables and views, with what they contain."""
    text = Path(__file__).with_name("relations.yaml").read_text(encoding="utf-8")
    found: dict[str, str] = yaml.safe_load(text)
    return found


@contextlib.contextmanager
def open_run_database(run: Run, sql: str = "") -> Iterator[Any]:
    """A read-only connection to the tables and views of a run. As `open_composition`."""
    with open_composition(run, sql) as connection:
        for name in ("sample", "neighbours"):
            path = run.fetch(f"report/{name}.parquet")
            if path.exists():
                connection.register(name, read_columns(path))
        yield connection


@contextlib.contextmanager
def run_query(run: Run, sql: str) -> Iterator[tuple[list[str], Iterator[tuple[Any, ...]]]]:
    """Names of the columns, and an iterator over the rows.

    The SQL can read nothing but the run's tables: DuckDB's `query` accepts one SELECT, and the
    connection cannot open another file, load an extension or change its configuration.

    Raises:
        RunError: the composition is missing, or DuckDB refuses the query.
    """
    import duckdb

    try:
        with open_run_database(run, sql) as connection:
            with contextlib.suppress(duckdb.InvalidInputException):  # locked by another query
                connection.execute("SET lock_configuration = true")
            found = connection.execute("FROM query(?)", [sql])
            names = [column[0] for column in found.description or ()]
            yield names, iter(found.fetchone, None)
    except duckdb.Error as error:
        raise RunError(f"query: {one_line(error)}") from None
