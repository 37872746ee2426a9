"""Stage `composition`: the corpus before and after selection, as a DuckDB file.

Tables and views of `composition.duckdb` (`datamask query RUN "select ..."`, or any DuckDB client;
the file can be moved):

- `documents`: id, shard, row, characters, tokens, dump, language, domain, one column per raw score,
  quality, dropped, near_duplicate_of, contaminated_by, contaminated_at, contaminated_ngram, logit,
  selected, top_quality (whether ranking by quality alone selects it); with
  `selection.max_repeat` above 1 also repeat (how often training sees it, if it is selected)
- `selection`: view of the selected documents
- `totals`: documents, characters and tokens by selection: source, candidates (left by pruning),
  selected, top_quality, random (expected values)
- `lengths`: quantiles of characters by selection
- `score_summary`: mean, minimum and maximum of quality and each raw score by selection
- `score_correlations`: Spearman's correlation of each pair of scores, over a sample of documents
- `score_groups`: documents of each group among the corpus's best tenth by quality, if scores are
  compared over the whole corpus and within the groups (`normalise_within`)
- `groups`: documents and shares before and after selection by kind (dump, language, domain) and
  name: the largest groups, those whose share changed most, and "(none)" for documents without one
- `terms`: each term of the objective for the selection, random (mean and standard deviation
  `random_std` over random subsets of the same size) and top quality; then row `objective`, the sum
  of the weighted terms, each divided by its scale. Scope `shard`: means over shards, weighted by
  selected documents; each shard has its own scales. Scope `corpus`: values of the corpus, and the
  `scale` of each term
- `shards`: what learning reported per shard; in scope `corpus` shards have no objectives
- `curves`: shard, step, seconds, objective and term values, one row per value
- `rounds`: objective, accepted share and convergence of each round across shards
  (`selection.scope: corpus`)
- `drift`: of a run that is judged by a mask model, the share kept and the mean gain of each term,
  against the corpus that the model was learnt on (`datamask.analysis.drift`)
- `receipt`: what this file was computed from

Computed from `scores/`, `quality/`, `selection/`, `curves/` and, in scope `corpus`, sums over
embeddings; embeddings themselves are not read. Sums are of integers or on one thread, so that
equal runs give equal values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from datamask.config.compute import Compute
from datamask.config.selection import NO_GROUP
from datamask.errors import CorruptFileError, RunError
from datamask.runs.files import replace_file
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run
from datamask.selection.limits import group_column
from datamask.selection.repeats import added_repeat
from datamask.storage.duckdb_scratch import read_only_duckdb, temporary_duckdb

KINDS = {"dump": "dumps", "language": "languages", "domain": "domains"}
"""Kinds of groups, with their plurals; documents without a group are in the group `NO_GROUP`."""

GROUP_LIMIT = 200
"""Most groups of a kind listed for their documents in the source."""

CHANGE_LIMIT = 50
"""Most groups of a kind listed for the change of their share."""

QUANTILES = (1, 5, 10, 20, 25, 30, 40, 50, 60, 70, 75, 80, 90, 95, 99)
"""Percentages in table `lengths`."""

_SELECTIONS = (
    ("source", "true"),
    ("candidates", "dropped IS NULL"),
    ("selected", "selected"),
    ("top_quality", "top_quality"),
)

_DOCUMENTS = """
CREATE TABLE made.documents AS
WITH {parts},
joined AS (
    SELECT s.* EXCLUDE (content) REPLACE ({groups}), q.quality, q.dropped,
        q.near_duplicate_of, q.contaminated_by, q.contaminated_at, q.contaminated_ngram, m.logit,
        coalesce(m.selected, false) AS selected
    FROM scores s
    JOIN quality q ON s.shard = q.shard AND s.row = q.row AND s.id = q.id
    LEFT JOIN selection m ON q.shard = m.shard AND q.id = m.chunk_id
)
SELECT *, dropped IS NULL AND row_number() OVER (
    {partition} ORDER BY dropped IS NOT NULL, quality DESC, id
) <= sum(selected::INT) OVER ({partition}) AS top_quality{repeat}
FROM joined ORDER BY shard, row
"""

_PART = """{name} AS (
    SELECT f.shard, p.* EXCLUDE (filename) FROM read_parquet(${name}, filename = true) p
    JOIN (SELECT unnest(${name}) AS path, unnest(range({count}))::INT AS shard) f
    ON p.filename = f.path
)"""


def compose(run: Run, compute: Compute) -> None:
    """Write `composition.duckdb`.

    Raises:
        RunError: a shard's mask is missing or stale.
        CorruptFileError: the files of a shard do not hold the same documents.
        StorageError: the disk is full.
    """
    receipts = [run.receipt("selection", shard) for shard in range(run.num_shards)]
    with (
        replace_file(run.local_path("composition"), run.storage) as temporary,
        temporary_duckdb(run.root, compute) as connection,
    ):
        quoted = str(temporary).replace("'", "''")
        connection.execute(f"ATTACH '{quoted}' AS made")
        _documents(connection, run)
        # Sums of floats depend on how threads divide the rows.
        connection.execute("SET threads = 1")
        _totals(connection, run.settings.selection.scope)
        _lengths(connection)
        _scores(connection, [score.name for score in run.settings.scores])
        _groups(connection)
        terms = _terms(run, [receipt.metrics for receipt in receipts])
        _table(connection, "terms", terms)
        for name, schema in _OF_SCORES.items():
            found = run.receipt("quality", 0).metrics.get(name, [])
            _table(connection, name, pa.Table.from_pylist(found, schema=schema))
        _table(connection, "shards", _shards(run, receipts))
        _curves(connection, run)
        _table(connection, "rounds", _rounds(run))
        _table(connection, "drift", pa.Table.from_pylist(_drift(run), schema=_DRIFT))
        connection.execute("CREATE VIEW made.selection AS SELECT * FROM documents WHERE selected")
        receipt = run.make_receipt("composition", 0, run.num_documents)
        _table(connection, "receipt", pa.table({"receipt": [receipt.to_json()]}))
        connection.execute("DETACH made")


def _documents(connection: Any, run: Run) -> None:
    shards = range(run.num_shards)
    names = ("scores", "selection")
    paths = {name: [str(run.path(name, shard)) for shard in shards] for name in names}
    paths["quality"] = [str(run.quality_path(shard)) for shard in shards]
    parts = ",\n".join(_PART.format(name=name, count=run.num_shards) for name in paths)
    partition = "PARTITION BY shard" if run.settings.selection.scope == "shard" else ""
    groups = ", ".join(f"{group_column(kind, 's')} AS {kind}" for kind in KINDS)
    repeat = added_repeat(run)
    query = _DOCUMENTS.format(parts=parts, partition=partition, groups=groups, repeat=repeat)
    connection.execute(query, paths).fetchall()
    found = connection.execute("SELECT count(*) FROM made.documents").fetchall()[0][0]
    if found != run.num_documents:
        raise CorruptFileError(
            f"{run.root}: scores and quality agree on {found} of {run.num_documents} documents; "
            "delete the folder quality and relaunch"
        )


def _each_selection(query: str) -> str:
    return " UNION ALL ".join(query.format(name=name, where=where) for name, where in _SELECTIONS)


def _totals(connection: Any, scope: str) -> None:
    # The sum over no documents is 0; null means unknown.
    one = (
        "SELECT '{name}' AS selection, count(*)::DOUBLE AS documents, "
        "if(count(*) = 0, 0, sum(characters))::DOUBLE AS characters, "
        "if(count(*) = 0, 0, sum(tokens))::DOUBLE AS tokens "
        "FROM made.documents WHERE {where}"
    )
    # The expected mean of a random subset is that of the candidates of its shard or corpus.
    group = "GROUP BY shard ORDER BY shard" if scope == "shard" else ""
    random = (
        "SELECT 'random', sum(n), sum(n * c / k), sum(n * t / k) FROM (SELECT "
        "sum(selected::INT) AS n, count(*) AS k, sum(characters) AS c, sum(tokens) AS t "
        f"FROM made.documents WHERE dropped IS NULL {group})"
    )
    connection.execute(
        f"CREATE TABLE made.totals AS SELECT *, characters / nullif(documents, 0) AS "
        f"mean_characters, tokens / nullif(documents, 0) AS mean_tokens "
        f"FROM ({_each_selection(one)} UNION ALL {random})"
    )


def _lengths(connection: Any) -> None:
    # A quantile over documents would keep all of them in memory; counts by length are few.
    columns = ", ".join(
        f"min(characters) FILTER (100 * below >= {p} * total) AS q{p}" for p in QUANTILES
    )
    one = (
        f"SELECT '{{name}}' AS selection, {columns} FROM (SELECT characters, "
        "sum(n) OVER (ORDER BY characters) AS below, sum(n) OVER () AS total FROM "
        "(SELECT characters, count(*) AS n FROM made.documents "
        "WHERE {where} AND characters IS NOT NULL GROUP BY characters))"
    )
    connection.execute(f"CREATE TABLE made.lengths AS {_each_selection(one)}")


def _scores(connection: Any, names: list[str]) -> None:
    # Score names match [a-z][a-z0-9_]* (config.Score), so they are safe as identifiers.
    parts = [
        _each_selection(
            f"SELECT '{score}' AS score, '{{name}}' AS selection, avg(\"{score}\") AS mean, "
            f'min("{score}") AS least, max("{score}") AS largest, '
            f'count(*) - count("{score}") AS missing FROM made.documents WHERE {{where}}'
        )
        for score in ("quality", *names)
    ]
    connection.execute(f"CREATE TABLE made.score_summary AS {' UNION ALL '.join(parts)}")


def _groups(connection: Any) -> None:
    parts = [
        f"SELECT '{kind}' AS kind, {kind} AS name, count(*) AS documents_before, "
        f"sum(selected::INT)::BIGINT AS documents_after FROM made.documents "
        f"WHERE (SELECT bool_or({kind} <> '{NO_GROUP}') FROM made.documents) GROUP BY {kind}"
        for kind in KINDS
    ]
    connection.execute(
        "CREATE TABLE made.groups AS SELECT g.*, "
        "documents_before / n.before AS share_before, documents_after / n.after AS share_after "
        f"FROM ({' UNION ALL '.join(parts)}) g, (SELECT count(*) AS before, "
        "greatest(sum(selected::INT), 1) AS after FROM made.documents) n "
        "QUALIFY row_number() OVER (PARTITION BY kind ORDER BY documents_before DESC, name) "
        f"<= {GROUP_LIMIT} OR name = '{NO_GROUP}' OR row_number() OVER (PARTITION BY kind "
        f"ORDER BY abs(share_after - share_before) DESC, name) <= {CHANGE_LIMIT} "
        "ORDER BY kind, documents_before DESC, name"
    )


def _table(connection: Any, name: str, table: pa.Table) -> None:
    connection.register("arriving", table)
    connection.execute(f"CREATE TABLE made.{name} AS SELECT * FROM arriving").fetchall()
    connection.unregister("arriving")


_OF_SCORES = {
    "score_correlations": pa.schema(
        [
            ("score", pa.string()),
            ("other", pa.string()),
            ("correlation", pa.float64()),
            ("documents", pa.int64()),
        ]
    ),
    "score_groups": pa.schema(
        [
            ("kind", pa.string()),
            ("name", pa.string()),
            *((name, pa.int64()) for name in ("documents", "best_whole", "best_within")),
        ]
    ),
}

_TERMS = ("selected", "random", "random_std", "top_quality", "scale")


def _terms(run: Run, metrics: list[dict[str, Any]]) -> pa.Table:
    corpus = run.settings.selection.scope == "corpus"
    rows = _terms_of_corpus(run) if corpus else _terms_of_shards(metrics)
    kinds = [(key, pa.float64()) for key in _TERMS]
    schema = pa.schema([("term", pa.string()), ("maximise", pa.bool_()), *kinds])
    return pa.Table.from_pylist(rows, schema=schema)


def _terms_of_corpus(run: Run) -> list[dict[str, Any]]:
    from datamask.selection.outcome import corpus_metrics

    found = corpus_metrics(run)
    rows = [
        {"term": name, **values, "scale": found["scales"][name]}
        for name, values in found["terms"].items()
    ]
    return [*rows, {"term": "objective", "maximise": True, **found["objective"]}]


def _terms_of_shards(metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over shards, weighted by selected documents."""
    parts = [
        (shard["num_selected"], shard["terms"] | {"objective": shard["objective"]})
        for shard in metrics
        if shard["num_selected"]
    ]
    total = float(sum(count for count, _ in parts))

    def mean(name: str, key: str) -> float | None:
        values = [(count, terms[name].get(key)) for count, terms in parts]
        if any(value is None for _, value in values):
            return None
        return sum(float(count) * float(value) for count, value in values) / total

    return [
        {"term": name, "maximise": term.get("maximise", True)}
        | {key: mean(name, key) for key in _TERMS}
        for name, term in (parts[0][1] if parts else {}).items()
    ]


_SHARDS = {
    "shard": pa.int64(),
    "documents": pa.int64(),
    "candidates": pa.int64(),
    "selected": pa.int64(),
    "estimator": pa.string(),
    "steps": pa.int64(),
    "stopped_by": pa.string(),
    "optimality_gap": pa.float64(),
    "objective": pa.float64(),
    "objective_random": pa.float64(),
    "objective_top_quality": pa.float64(),
}


def _shards(run: Run, receipts: list[Receipt]) -> pa.Table:
    rows = []
    for shard, receipt in enumerate(receipts):
        objective = receipt.metrics.get("objective", {})
        rows.append(
            receipt.metrics
            | {
                "shard": shard,
                "documents": run.shard_rows(shard),
                "candidates": receipt.rows,
                "selected": receipt.metrics["num_selected"],
                "objective": objective.get("selected"),
                "objective_random": objective.get("random"),
                "objective_top_quality": objective.get("top_quality"),
            }
        )
    return pa.Table.from_pylist(rows, schema=pa.schema(_SHARDS))


def _curves(connection: Any, run: Run) -> None:
    connection.execute(
        "CREATE TABLE made.curves "
        "(shard BIGINT, step BIGINT, seconds DOUBLE, term VARCHAR, value DOUBLE)"
    )
    # The rounds across shards have one curve, of which every shard has a copy.
    for shard in range(1 if run.settings.selection.num_rounds else run.num_shards):
        path = run.fetch(run.curve_path(shard))
        if path.exists():
            connection.execute(
                "INSERT INTO made.curves SELECT $shard, step, seconds, term, value "
                "FROM (FROM read_parquet($path)) UNPIVOT INCLUDE NULLS "
                "(value FOR term IN (COLUMNS(* EXCLUDE (step, seconds))))",
                {"shard": shard, "path": str(path)},
            )


_NUMBERS = ("then", "now", "deviation_then", "deviation_now", "shift")
_DRIFT = pa.schema([("term", pa.string()), *((name, pa.float64()) for name in _NUMBERS)])


def _drift(run: Run) -> list[dict[str, Any]]:
    from datamask.selection.applying import drift

    return drift(run)


_ROUND = ("objective", "share", "documents", "dual_price")


def _rounds(run: Run) -> pa.Table:
    rows = [
        {"round": number, **run.receipt("round_total", number).metrics}
        for number in range(1, run.last_round + 1)
    ]
    kinds = [(name, pa.float64()) for name in _ROUND]
    schema = pa.schema([("round", pa.int64()), *kinds, ("settled", pa.bool_())])
    return pa.Table.from_pylist(rows, schema=schema)


@contextlib.contextmanager
def open_composition(run: Run) -> Iterator[Any]:
    """A read-only connection to a run's `composition.duckdb`.

    Raises:
        RunError: the file is missing.
    """
    path = run.path("composition")
    if not path.exists():
        raise RunError(
            f"{run.address}/{path.name}: missing; run `datamask rebuild {run.address}` first"
        )
    with read_only_duckdb(path) as connection:
        yield connection


def query(run: Run, sql: str) -> list[dict[str, Any]]:
    """Rows of a query on a run's `composition.duckdb`.

    Raises:
        RunError: the file is missing.
    """
    with open_composition(run) as connection:
        return rows_of(connection.execute(sql))


def rows_of(found: Any) -> list[dict[str, Any]]:
    """All rows of a DuckDB result, as dictionaries by column."""
    names = [column[0] for column in found.description]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]
