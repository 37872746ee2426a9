"""Run SQL on a run: its DuckDB file, its documents and the report's sample, read-only.

`relations.yaml` describes the tables and views; `datamask query RUN` prints it.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import yaml

from datamask.analysis.composition import open_composition
from datamask.errors import RunError, SettingsError, one_line
from datamask.runs import schemas
from datamask.runs.files import read_columns
from datamask.runs.run import Run


@functools.cache
def relations() -> dict[str, str]:
    """Return tables and views, each with a description."""
    text = Path(__file__).with_name("relations.yaml").read_text(encoding="utf-8")
    descriptions: dict[str, str] = yaml.safe_load(text)
    return descriptions


@contextlib.contextmanager
def open_run_database(run: Run, sql: str = "") -> Iterator[Any]:
    """Yield a read-only connection to the tables and views of a run.

    Errors are as in `open_composition`.
    """
    with open_composition(run, sql) as connection:
        for name in ("sample", "neighbours"):
            path = run.fetch(f"report/{name}.parquet")
            if path.exists():
                connection.register(name, read_columns(path))
        if re.search(r"\barms\b", sql, re.IGNORECASE):
            arms = [arm_documents(run, unit) for unit in range(run.num_units("arms"))]
            connection.register("arms", pa.concat_tables([_ARMS.empty_table(), *arms]))
        if re.search(r"\bverdicts\b", sql, re.IGNORECASE):
            path, none = run.path("evaluation"), schemas.EVALUATION.empty_table()
            connection.register("verdicts", read_columns(path) if path.exists() else none)
        if re.search(r"\bexposures\b", sql, re.IGNORECASE) and run.settings.tokens is not None:
            run.receipt("order")
            quoted = str(run.path("order").absolute()).replace("'", "''")
            connection.execute(
                "CREATE TEMP VIEW exposures AS FROM "
                f"read_parquet('{quoted}', hive_partitioning = false)"
            )
        yield connection


_ARMS = schemas.ARM.set(3, pa.field("tokens", pa.int32())).insert(0, pa.field("arm", pa.string()))


def arm_documents(run: Run, unit: int) -> pa.Table:
    """Return the documents of an arm with its name and token counts; none before it is made."""
    if not (path := run.path("arms", unit)).exists():
        return _ARMS.empty_table()
    table = read_columns(path)
    names = pa.repeat(run.settings.evaluation.arms[unit].name, len(table))
    columns = [names, *table.columns[:3], pc.list_value_length(table["tokens"])]
    return pa.table(columns, schema=_ARMS)


_SEEN = """
SELECT e.id, exposure, first_token, e.tokens, file, phase, d.shard, quality, logit, domain, topic,
    language, dump, (SELECT count(*) FROM documents n WHERE n.near_duplicate_of = e.id) AS copies
FROM exposures e JOIN documents d ON d.id = e.id WHERE {} ORDER BY first_token
"""


def seen(tokens: str, document: str) -> str:
    """Return SQL for the exposures in a range of tokens, or of a document, with its facts.

    Args:
        tokens: first and last number, such as `1.2e9:1.3e9`; the last is left out; empty: all.
        document: its id; empty: all.

    Raises:
        SettingsError: the text is not a range.
    """
    conditions = ["true"]
    if tokens:
        try:
            first, last = (int(float(number)) for number in tokens.split(":"))
            if not 0 <= first < last:
                raise ValueError
        except (ValueError, OverflowError):
            raise SettingsError(f"--tokens {tokens}: name a range such as 1.2e9:1.3e9") from None
        conditions.append(f"first_token < {last} AND first_token + e.tokens > {first}")
    if document:
        quoted = document.replace("'", "''")
        conditions.append(f"e.id = '{quoted}'")
    return _SEEN.format(" AND ".join(conditions))


@contextlib.contextmanager
def run_query(run: Run, sql: str) -> Iterator[tuple[list[str], Iterator[tuple[Any, ...]]]]:
    """Return names of the columns, and an iterator over the rows.

    The SQL can read nothing but the run's tables: DuckDB's `query` accepts one SELECT, and the
    connection cannot open another file, load an extension or change its configuration.

    Raises:
        RunError: the composition is missing, or DuckDB refuses the query.
    """
    import duckdb

    try:
        with open_run_database(run, sql) as connection:
            with contextlib.suppress(duckdb.InvalidInputException):  # Another query has locked it.
                connection.execute("SET lock_configuration = true")
            result = connection.execute("FROM query(?)", [sql])
            names = [column[0] for column in result.description or ()]
            yield names, iter(result.fetchone, None)
    except duckdb.Error as error:
        # DuckDB then repeats the statement around the SQL, which is not the user's.
        said = str(error).partition("\nLINE ")[0]
        raise RunError(f"query: {one_line(said)}") from None
