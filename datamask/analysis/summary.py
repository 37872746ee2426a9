"""Read the results of a run: by SQL, which only reads, or as the answers that pages show.

`relations.yaml` describes the tables and views; `datamask query RUN` prints it.
"""

from __future__ import annotations

import contextlib
import functools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import yaml

from datamask.analysis import learning_tables
from datamask.config.settings import Settings
from datamask.errors import RunError, SettingsError, one_line
from datamask.runs import schemas
from datamask.runs.files import read_columns
from datamask.runs.run import Run
from datamask.storage.duckdb_scratch import read_only_duckdb
from datamask.storage.names import inside

_PLURALS = {"dump": "dumps", "language": "languages", "domain": "domains", "topic": "topics"}


def kinds_of(settings: Settings) -> dict[str, str]:
    """Return the kinds of groups of a run, with their plurals; `NO_GROUP` is a group of each."""
    return {kind: _PLURALS.get(kind, kind) for kind in (*settings.source.kinds, "topic")}


def tabs_of(settings: Settings) -> dict[str, str]:
    """Return the kinds of groups that pages list, with their names."""
    return kinds_of(settings) | {"length": "length bands (characters)"}


@functools.cache
def relations() -> dict[str, str]:
    """Return tables and views, each with a description."""
    text = Path(__file__).with_name("relations.yaml").read_text(encoding="utf-8")
    descriptions: dict[str, str] = yaml.safe_load(text)
    return descriptions


@contextlib.contextmanager
def open_composition(run: Run, sql: str) -> Iterator[Any]:
    """Yield a read-only connection to `composition.duckdb`, which knows the run's other tables too.

    Args:
        run: the run.
        sql: what will be executed. Files of the run are read only if it names their table or view.

    Raises:
        RunError: the file, or a file of the shards, is missing.
    """
    path = run.path("composition")
    needed = [path]
    if _is_named(sql, "documents", "selection"):
        needed += [run.path("documents", shard) for shard in range(run.num_shards)]
    for file in needed:
        if not file.exists():
            name = file.relative_to(run.root)
            command = f"datamask rebuild {shlex.quote(run.address)}"
            raise RunError(f"{run.address}/{name}: missing; run `{command}` first")
    with read_only_duckdb(path) as connection:
        if len(needed) > 1:
            # DuckDB allows absolute paths only.
            connection.execute(f"CREATE TEMP VIEW documents AS FROM {documents_of(run)}")
            connection.execute("CREATE TEMP VIEW selection AS FROM temp.documents WHERE selected")
        for table in ("sample", "neighbours"):
            if _is_named(sql, table) and (path := run.fetch(f"report/{table}.parquet")).exists():
                connection.register(table, read_columns(path))
        if _is_named(sql, "exposures") and run.settings.tokens is not None:
            run.receipt("order")
            quoted = str(run.path("order").absolute()).replace("'", "''")
            connection.execute(
                "CREATE TEMP VIEW exposures AS FROM "
                f"read_parquet('{quoted}', hive_partitioning = false)"
            )
        yield connection


def _is_named(sql: str, *names: str) -> bool:
    return re.search(rf"\b({'|'.join(names)})\b", sql, re.IGNORECASE) is not None


def documents_of(run: Run, folder: str | None = None) -> str:
    """Return SQL for FROM: the documents of all shards, from their files, which must be fetched.

    Args:
        run: the run.
        folder: the run's folder in the path of the files; None for the absolute one.
    """
    for path in run.root.glob("documents/*.parquet"):
        inside(run.root, f"documents/{path.name}")
    pattern = Path(run.root.absolute() if folder is None else folder) / "documents" / "*.parquet"
    quoted = str(pattern).replace("'", "''")
    return f"read_parquet('{quoted}', hive_partitioning = false) WHERE shard < {run.num_shards}"


def query(run: Run, sql: str, parameters: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return the rows of a query on the run's tables; errors are as in `open_composition`."""
    with open_composition(run, sql) as connection:
        return rows_of(connection.execute(sql, parameters))


def rows_of(result: Any) -> list[dict[str, Any]]:
    """Return all rows of a DuckDB result, as dictionaries by column."""
    names = [column[0] for column in result.description]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


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
        with open_composition(run, sql) as connection:
            _add_evaluation(connection, run, sql)
            with contextlib.suppress(duckdb.InvalidInputException):  # Another query has locked it.
                connection.execute("SET lock_configuration = true")
            result = connection.execute("FROM query(?)", [sql])
            names = [column[0] for column in result.description or ()]
            yield names, iter(result.fetchone, None)
    except duckdb.Error as error:
        # DuckDB then repeats the statement around the SQL, which is not the user's.
        said = str(error).partition("\nLINE ")[0]
        raise RunError(f"query: {one_line(said)}") from None


_ARMS = schemas.ARM.set(3, pa.field("tokens", pa.int32())).insert(0, pa.field("arm", pa.string()))


def _add_evaluation(connection: Any, run: Run, sql: str) -> None:
    """Add the tables `arms` and `verdicts`, if the SQL names them; no page reads them."""
    if _is_named(sql, "arms"):
        arms = [_arm_documents(run, unit) for unit in range(run.num_units("arms"))]
        connection.register("arms", pa.concat_tables([_ARMS.empty_table(), *arms]))
    if _is_named(sql, "verdicts"):
        path, none = run.path("evaluation"), schemas.EVALUATION.empty_table()
        connection.register("verdicts", read_columns(path) if path.exists() else none)


def _arm_documents(run: Run, unit: int) -> pa.Table:
    """Return the documents of an arm with its name and token counts; none before it is made."""
    if not (path := run.path("arms", unit)).exists():
        return _ARMS.empty_table()
    table = read_columns(path)
    names = pa.repeat(run.settings.evaluation.arms[unit].name, len(table))
    columns = [names, *table.columns[:3], pc.list_value_length(table["tokens"])]
    return pa.table(columns, schema=_ARMS)


def terms_of(run: Run, shards: Sequence[int] | None = None) -> dict[str, dict[str, Any]]:
    """Return rows of table `terms` by term; for *shards* only, from their masks' receipts.

    Raises:
        RunError: the composition is missing; or, with *shards*, a mask is.
    """
    if shards is None:
        rows = query(run, "SELECT * FROM terms")
    else:
        receipts = [run.receipt("selection", shard) for shard in shards]
        rows = learning_tables.terms_of_shards([receipt.metrics for receipt in receipts])
    return {row["term"]: row for row in rows}


def units_of(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    """Return, by term, the mean of random selections and the gain of the best selection.

    *rows* come from `terms_of`. The best selection is by this term alone; its gain is below 0 for
    terms to minimise. Terms whose best selection is unknown are left out.
    """
    return {
        name: (row["random"], row["best"] - row["random"])
        for name, row in rows.items()
        if name != "objective" and row["best"] is not None and row["best"] != row["random"]
    }


def gains(
    run: Run, reference: Run | None = None, shards: Sequence[int] | None = None
) -> dict[str, dict[str, float]]:
    """Return the gain of `selected` and `top_quality` over random, as a fraction of the best gain.

    By term: 0 is random, 1 the best selection by this term alone, also for terms to minimise.
    `error` is the standard error of the fraction, above 0 where the value is measured on a sample.
    Runs are compared over the random and best selections of one *reference*, because other settings
    change those. Errors are as in `terms_of`.
    """
    rows = terms_of(run, shards)
    units = units_of(terms_of(reference, shards) if reference else rows)
    return {
        name: {
            selection: (row[selection] - units[name][0]) / units[name][1]
            for selection in ("selected", "top_quality")
            if row[selection] is not None
        }
        | {"error": (row["error"] or 0.0) / abs(units[name][1])}
        for name, row in rows.items()
        if name in units
    }


@dataclass(frozen=True, slots=True)
class Repeats:
    """Repeats of the selected documents in training.

    Args:
        unit: `tokens`, or `documents` if the source has no tokens.
        seen: the total that training sees, in this unit, with repeats.
        epochs: mean number of exposures per unit.
        repeated: fraction of `seen` that is not new.
        rows: repeat, documents, tokens and fraction of `seen`, by repeat.
    """

    unit: str
    seen: int
    epochs: float
    repeated: float
    rows: list[dict[str, Any]]


def repeats_of(run: Run) -> Repeats | None:
    """Return the distribution of column `repeat`; None without repeats.

    Raises:
        RunError: the composition is missing.
    """
    if run.settings.selection.max_repeat == 1:
        return None
    rows = query(
        run,
        "SELECT repeat, count(*) AS documents, sum(tokens)::BIGINT AS tokens FROM selection "
        "GROUP BY repeat ORDER BY repeat",
    )
    unit = "documents" if None in (row["tokens"] for row in rows) else "tokens"
    seen = sum(row["repeat"] * row[unit] for row in rows)
    epoch = sum(row[unit] for row in rows)
    for row in rows:
        row["share"] = row["repeat"] * row[unit] / max(seen, 1)
    return Repeats(unit, seen, seen / max(epoch, 1), 1 - epoch / max(seen, 1), rows)


def funnel_of(run: Run) -> list[dict[str, Any]]:
    """Return rows of table `funnel`, in order: how many documents remain after each step."""
    return query(run, "SELECT * FROM funnel WHERE kind = 'all' ORDER BY number")


def score_coverage(run: Run) -> dict[str, float]:
    """Return the fraction of the source's documents that have a score, in [0, 1], by score."""
    rows = query(
        run,
        "SELECT score, 1 - missing / greatest(documents, 1) AS covered FROM score_summary "
        "JOIN totals USING (selection) WHERE selection = 'source'",
    )
    covered = {row["score"]: row["covered"] for row in rows}
    return {score.name: covered[score.name] for score in run.settings.scores}


def moved_groups(run: Run, most: int) -> list[dict[str, Any]]:
    """Return groups whose part of the best tenth changes most with normalisation within groups."""
    return query(
        run,
        "SELECT * FROM score_groups WHERE best_within <> best_whole "
        f"ORDER BY abs(best_within - best_whole) DESC, kind, name LIMIT {most}",
    )


def tokens_of(run: Run) -> str:
    """Describe in sentences the tokens of training and of budgets; empty without tokens."""
    tokens = run.settings.tokens
    if tokens is None:
        return ""
    made, name = run.receipt("order").metrics, tokens.tokenizer.rpartition("/")[2]
    phases = ", ".join(f"{phase['tokens']:,d}" for phase in made["phases"])
    told = (
        f"Training sees {made['tokens']:,d} tokens of {name}, with one for the end of each of "
        f"{made['documents']:,d} documents"
    )
    told += f", in phases of {phases}." if len(made["phases"]) > 1 else "."
    if run.settings.counts_for_trainer:
        told += " All numbers of tokens, and the budget, are counted so."
    return told


def totals_of(run: Run) -> dict[str, dict[str, Any]]:
    """Return rows of table `totals` by selection."""
    return {row["selection"]: row for row in query(run, "SELECT * FROM totals")}


def near_duplicates(run: Run) -> dict[str, int]:
    """Count near-duplicates `dropped`, and among them those that repeat an `earlier` dataset."""
    [summary] = query(
        run,
        "SELECT count(*) AS dropped, count(*) FILTER (near_duplicate_of LIKE 'earlier:%') "
        "AS earlier FROM documents WHERE dropped = 'near_duplicate'",
    )
    return summary


def benchmarks(run: Run) -> list[dict[str, Any]]:
    """Return a row for each benchmark, in the order of the settings.

    A row has the `name`, and counts what the benchmark has: `texts` (items), items too `short` to
    be detected, `ngrams`, and `common` n-grams, which do not count. It counts `documents` that
    share n-grams with an item, and among them those that are `covering` one, `dropped` for it,
    `selected`, and both covering and selected (`leaks`). `example` is a shared n-gram, or None.
    """
    known = run.settings.quality.contamination
    if known is None:
        return []
    rows = query(
        run,
        "SELECT contaminated_by AS name, count(*) AS documents, "
        f"count(*) FILTER (contaminated_share >= {known.covered}) AS covering, "
        f"count(*) FILTER (contaminated_share >= {known.covered} AND selected) AS leaks, "
        "count(*) FILTER (dropped = 'contaminated') AS dropped, "
        "count(*) FILTER (selected) AS selected, "
        "min_by(contaminated_ngram, (shard, row)) AS example FROM documents "
        "WHERE contaminated_by IS NOT NULL GROUP BY contaminated_by",
    )
    by_name = {row["name"]: row for row in rows}
    numbers = ("documents", "covering", "dropped", "selected", "leaks")
    nothing = {**dict.fromkeys(numbers, 0), "example": None}
    sets = run.receipt("benchmark_ngrams").metrics
    common = run.receipt("quality", 0).metrics["common_ngrams"]
    return [
        {"name": name, **sets[name], "common": common[name], **by_name.get(name, nothing)}
        for name in (known_set.name for known_set in known.sets)
    ]


MOST_CHANGE = 0.2
"""Relative change of the fraction kept, against the model's run, above which there is a warning."""


def drift(run: Run) -> list[dict[str, Any]]:
    """Measure how the documents differ from those that the run's mask model was learned on.

    The contribution of a term to a document's logit is linear in the document's moments. So its
    mean over a corpus is the corpus's mean moments seen along the gradient of the term: the
    direction in which a difference changes the selection.

    Returns rows of table `drift`: `share kept` of the source, then each term; empty without a
    model. Keys: `term`; `then` and `now`, the fraction kept or the mean gain over documents in
    units of the logit, when the model was learned and in this run; `deviation_then` and
    `deviation_now` of the gain; `shift`, the relative change of the fraction, or the change of the
    mean in deviations.
    """
    return query(run, "SELECT * FROM drift") if run.settings.selection.mask_model else []
