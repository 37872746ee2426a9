"""SQL on a run: its DuckDB file, its documents and the report's sample as a read-only database.

`RELATIONS` describes the tables and views; `datamask query RUN` prints it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from datamask.analysis.composition import open_composition
from datamask.errors import RunError, one_line
from datamask.runs.files import read_columns
from datamask.runs.run import Run

RELATIONS = {
    "documents": "one row per document of the source: id, shard, row, characters, tokens, dump, "
    "language, domain, raw scores, quality, dropped (why, or null), near_duplicate_of, "
    "contaminated_by, contaminated_at, contaminated_ngram, logit, selected, top_quality; with "
    "selection.max_repeat: repeat",
    "selection": "the selected documents; columns as in documents",
    "shards": "one row per shard: documents, candidates, selected, estimator, steps, stopped_by, "
    "optimality_gap, objective, objective_random, objective_top_quality",
    "curves": "one row per recorded value: shard, step, seconds, term, value",
    "rounds": "scope corpus: round, objective, share (accepted), documents, dual_price, settled",
    "drift": "selection.mask_model: share kept and each term's gain: term, then (where the model "
    "was learnt), now, deviation_then, deviation_now, shift",
    "terms": "each term of the objective: term, selected, random, random_std, top_quality, "
    "maximise; scope corpus: also its scale, and the objective",
    "totals": "one row per selection (source, candidates, selected, top_quality, random): "
    "documents, characters, tokens, mean_characters, mean_tokens",
    "lengths": "quantiles of characters by selection: q1, q5, q10, q20, q25, q30, q40, q50, q60, "
    "q70, q75, q80, q90, q95, q99",
    "score_summary": "by score and selection: mean, least, largest, missing (values)",
    "score_correlations": "Spearman's correlation of each pair: score, other, correlation, "
    "documents (of a sample, with both)",
    "score_groups": "scores normalised within groups: kind, name, documents, best_whole and "
    "best_within (documents in the best tenth without and with groups)",
    "groups": "by kind (dump, language, domain) and name, before and after selection: "
    "documents_before, documents_after, share_before, share_after",
    "sample": "the report's sample: shard, row, id, x, y, density, diverse, beginning",
    "neighbours": "cosine to the nearest other document: set, shard, row, cosine",
}
"""Tables and views, with what they contain."""


@contextlib.contextmanager
def open_run_database(run: Run, sql: str = "") -> Iterator[Any]:
    """A read-only connection to the tables and views of a run. As `open_composition`."""
    with open_composition(run, sql) as connection:
        for name in ("sample", "neighbours"):
            path = run.storage.fetch(f"report/{name}.parquet")
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
