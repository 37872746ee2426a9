"""Bring all scores to common scales, combine them, drop duplicates, and prune the corpus's worst.

It runs once over all shards, in DuckDB and out of core, and never sees text. It guarantees the
same numbers on every machine and thread count: ranks are quotients of integer counts, means and
deviations are merged in shard order (Chan et al. 1979), and DuckDB does floating-point arithmetic
within a row only. What is pruned is exact to the document; ties are broken by id.

A filled value counts like any other value of its score; a missing one counts nowhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from datamask.config.compute import Compute
from datamask.errors import InputError, SettingsError
from datamask.objectives.groups import LENGTH_BINS
from datamask.quality.agreement import score_correlations
from datamask.quality.dropping import ADDED, drop, execute, find_duplicates, is_drawn
from datamask.quality.grouping import (
    group_expressions,
    group_kinds,
    group_shares,
    normalise_within,
)
from datamask.quality.moments import merged_moments
from datamask.runs import budget, schemas
from datamask.runs.files import write_parquet
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run
from datamask.selection.limits import group_column, make_bounds
from datamask.selection.mask_model import judged_by
from datamask.selection.threshold import cut_table
from datamask.storage.duckdb_scratch import execute_with, temporary_duckdb

BATCH_ROWS = 2**16
QUANTILES = 1024
"""Resolution of the ranks that are kept for documents of later runs: 1/1024."""


def combine_scores(run: Run, compute: Compute) -> None:
    """Write every `quality/NNNNN.parquet` that is missing or stale, from all of `scores/`.

    Normalisations: `rank` is the share of documents with a smaller value, averaged over ties, in
    [0, 1); `z-score` has mean 0 and deviation 1; `min-max` is in [0, 1]; `none` is the value. The
    quality is the weighted sum. Of the documents that have text and all scores, copies,
    contaminated documents and near-duplicates are dropped (`quality.dropping`); of the rest, the
    worst floor(prune x number) by (quality, id) are pruned.

    The receipts' metrics: `kept`, `kept_before` (in earlier shards), `kept_total`, the same three
    of `tokens`, `dropped` by reason, `missing` by score, and `length_edges`, the deciles of the
    kept documents' characters; of the first shard, for the corpus, `score_correlations` and
    `score_groups` (`quality.agreement`, `quality.grouping`), and for mask models `normalisation`
    and `least_quality`, the least of a document that is left.

    A run that is judged by a mask model normalises by that of the model's corpus, and prunes what
    is below its `least_quality`.

    Raises:
        InputError: a score is missing and its policy is `error`; no document is left; the budget
            is in tokens and a document has no number of them.
        SettingsError: fewer documents or tokens are left than are to be kept, by all or by a group
            with a floor.
        RunError: a shard's scores, or what screening found, are missing or stale.
    """
    remaining = run.remaining("quality")
    if not remaining:
        return
    receipts = [run.receipt("scores", shard) for shard in range(run.num_shards)]
    _refuse_missing(run, receipts)
    with temporary_duckdb(run.root, compute) as connection:
        _load(connection, run)
        known = judged_by(run)
        names = [score.name for score in run.settings.scores]
        correlations = score_correlations(connection, names)
        find_duplicates(connection, run)
        normalisation = _normalise(connection, run, receipts, known)
        drop(connection, run, known["least_quality"] if known else None)
        metrics = _metrics(connection, run, receipts, known)
        metrics[0] |= {"score_correlations": correlations, "normalisation": normalisation}
        metrics[0]["least_quality"] = execute(
            connection, "SELECT min(quality) FROM result WHERE dropped IS NULL"
        )[0][0]
        if kinds := group_kinds(run.settings.scores):
            metrics[0]["score_groups"] = group_shares(connection, kinds)
        _check_tokens(connection, run)
        _check_left(run, metrics)
        _check_limits(connection, run)
        for shard in remaining:
            _write(connection, run, shard, metrics[shard])


def _refuse_missing(run: Run, receipts: list[Receipt]) -> None:
    for score in run.settings.scores:
        if score.missing != "error":
            continue
        for receipt in receipts:
            missing = receipt.metrics["scores"][score.name]["missing"]
            if missing:
                raise InputError(
                    f"score missing, NaN or infinite in {missing} documents; fix them, or set "
                    f"missing of score {score.name} to drop or fill",
                    path=run.path("scores", receipt.unit),
                    shard=receipt.unit,
                    column=score.name,
                )


def _load(connection: Any, run: Run) -> None:
    """Table `raw`: shard, row, id, empty, characters, content, tokens; v0, ...; held_out; g_<kind>.

    Held out are the documents that were drawn, and those with the same text.
    """
    scores = run.settings.scores
    values = ", ".join(f"v{i} DOUBLE" for i in range(len(scores)))
    groups = "".join(f", g_{kind} VARCHAR" for kind in group_kinds(scores))
    execute(
        connection,
        "CREATE TABLE raw (shard INTEGER, row BIGINT, id VARCHAR, empty BOOLEAN, "
        f"characters BIGINT, content BLOB, tokens BIGINT, {values}, held_out BOOLEAN{groups})",
    )
    fills: list[Any] = [
        score.fill_value + 0.0 if score.missing == "fill" else None for score in scores
    ]
    names = ", ".join(f"coalesce({_quote(score.name)}, CAST(? AS DOUBLE))" for score in scores)
    for shard in range(run.num_shards):
        members, parameters = group_expressions(run, shard)
        execute(
            connection,
            "INSERT INTO raw SELECT CAST(? AS INTEGER), row, id, coalesce(characters = 0, false), "
            f"characters, content, tokens, {names}, {is_drawn(run.settings)}{members} "
            "FROM read_parquet(?) s",
            [shard, *fills, *parameters, str(run.path("scores", shard))],
        )
    execute(
        connection,
        "UPDATE raw SET held_out = true WHERE content IN "
        "(SELECT content FROM raw WHERE held_out AND NOT empty)",
    )


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _normalise(
    connection: Any, run: Run, receipts: list[Receipt], known: dict[str, Any] | None
) -> dict[str, Any]:
    """Table `scored`: shard, row, id, empty, held_out, characters, repeated, tokens, quality, n0...

    If scores are compared within groups, also g_<kind> and whole_quality, the quality without.
    Returns what normalises a score of a later document, by name: offset and divisor, or quantiles
    (values and shares). With *known*, it is taken from there.
    """
    found: dict[str, Any] = known["normalisation"] if known else {}
    columns, joins, parameters, combined = [], [], [], []
    kinds = group_kinds(run.settings.scores)
    mixed, whole = "", []
    for i, score in enumerate(run.settings.scores):
        name = f"n{i}" if score.normalise_within == "none" else f"whole{i}"
        whole.append(f"CAST(? AS DOUBLE) * {name}")
        if score.normalise_within != "none":
            within = normalise_within(connection, i, score)
            columns.append(f"{within.value} AS within{i}, {within.weight} AS weight{i}")
            joins += within.joins
            mixed += f", weight{i} * within{i} + (1 - weight{i}) * whole{i} AS n{i}"
        if score.normalisation == "none":
            columns.append(f"v{i} AS {name}")
        elif score.normalisation == "rank":
            found[score.name] = _rank(connection, i, found.get(score.name))
            columns.append(f"rank{i}.share AS {name}")
            joins.append(f"LEFT JOIN rank{i} ON raw.v{i} = rank{i}.value")
        else:
            scale = found.get(score.name)
            if scale is None:
                scale = merged_moments(run, receipts, score).scale(score.normalisation)
            offset, divisor = found[score.name] = scale
            columns.append(f"(v{i} - CAST(? AS DOUBLE)) / CAST(? AS DOUBLE) AS {name}")
            parameters += [offset, divisor]
        combined.append(f"CAST(? AS DOUBLE) * n{i}")
    weights = [score.weight for score in run.settings.scores]
    quality = f"{' + '.join(combined)} + 0.0::DOUBLE AS quality"
    if kinds:
        columns += [f"g_{kind}" for kind in kinds]
        quality += f", {' + '.join(whole)} + 0.0::DOUBLE AS whole_quality"
        weights += weights
    execute(
        connection,
        f"CREATE TABLE scored AS SELECT *, {quality} FROM "
        f"(SELECT *{mixed} FROM (SELECT shard, row, id, empty, held_out, characters, tokens, "
        "coalesce("
        "firsts.place <> (shard::HUGEINT << 64 | row::HUGEINT), false) AS repeated, "
        f"{', '.join(columns)} FROM raw LEFT JOIN firsts ON raw.content = firsts.content "
        f"{' '.join(joins)}))",
        [*weights, *parameters],
    )
    execute(connection, "DROP TABLE raw")
    return found


def _rank(connection: Any, i: int, known: list[list[float]] | None) -> list[list[float]]:
    """Table `rank<i>`: for each value, (2 x smaller + equal - 1) / (2 x all), from integers.

    Returns values and their shares, at most `QUANTILES` + 1 of each; with *known*, shares are
    interpolated between them.
    """
    if known is not None:
        values = connection.execute(
            f"SELECT DISTINCT v{i} AS v FROM raw WHERE v{i} IS NOT NULL"
        ).fetchnumpy()["v"]
        table = pa.table({"value": values, "share": np.interp(values, known[0], known[1])})
        execute_with(connection, table, f"CREATE TABLE rank{i} AS FROM arriving")
        return known
    execute(
        connection,
        f"CREATE TABLE rank{i} AS WITH counts AS "
        f"(SELECT v{i} AS value, count(*) AS equal FROM raw WHERE v{i} IS NOT NULL GROUP BY ALL), "
        "sums AS (SELECT value, equal, CAST(sum(equal) OVER (ORDER BY value ROWS BETWEEN "
        "UNBOUNDED PRECEDING AND CURRENT ROW) AS BIGINT) AS upto FROM counts) "
        "SELECT value, CAST(2 * upto - equal - 1 AS DOUBLE) / "
        "CAST((SELECT 2 * max(upto) FROM sums) AS DOUBLE) AS share FROM sums",
    )
    points = execute(
        connection,
        f"SELECT min(value), min(share) FROM rank{i} GROUP BY floor(share * {QUANTILES}) UNION ALL "
        f"SELECT max(value), max(share) FROM rank{i} HAVING count(*) > 0 ORDER BY 1",
    )
    return [list(column) for column in zip(*points, strict=True)] or [[0.0], [0.0]]


def _metrics(
    connection: Any, run: Run, receipts: list[Receipt], known: dict[str, Any] | None
) -> list[dict[str, Any]]:
    counts: dict[tuple[int, str | None], int] = {}
    tokens = [0] * run.num_shards
    for shard, reason, number, found in execute(
        connection,
        "SELECT shard, dropped, count(*), coalesce(sum(tokens), 0) FROM result GROUP BY ALL",
    ):
        counts[shard, reason] = number
        if reason is None:
            tokens[shard] = int(found)
    parts = [number / LENGTH_BINS for number in range(1, LENGTH_BINS)]
    edges = execute(
        connection,
        "SELECT quantile_disc(characters, CAST(? AS DOUBLE[])) FROM result WHERE dropped IS NULL",
        [parts],
    )[0][0]
    kept = [counts.get((shard, None), 0) for shard in range(run.num_shards)]
    kept_before = [0, *itertools.accumulate(kept)]
    tokens_before = [0, *itertools.accumulate(tokens)]
    return [
        {
            "kept_before": kept_before[shard],
            "kept": kept[shard],
            "kept_total": kept_before[-1],
            "tokens_before": tokens_before[shard],
            "tokens": tokens[shard],
            "tokens_total": tokens_before[-1],
            "dropped": {reason: counts.get((shard, reason), 0) for reason in schemas.DROP_REASONS},
            "length_edges": known["length_edges"] if known else edges,
            "missing": {
                name: metrics["missing"]
                for name, metrics in receipts[shard].metrics["scores"].items()
            },
        }
        for shard in range(run.num_shards)
    ]


def _check_left(run: Run, metrics: list[dict[str, Any]]) -> None:
    left = metrics[0]["kept_total"]
    reasons = {
        reason: sum(figure["dropped"][reason] for figure in metrics)
        for reason in schemas.DROP_REASONS
    }
    why = ", ".join(f"{number} {reason}" for reason, number in reasons.items())
    if not left:
        raise InputError(f"no document is left of {run.num_documents} ({why})")
    selection = run.settings.selection
    total = budget.total_units(selection, run.num_documents)
    if selection.tokens is not None:
        found = metrics[0]["tokens_total"]
        if total > found:
            raise SettingsError(
                f"selection.tokens: {total} tokens are to be kept, but the {left} documents that "
                f"are left ({why}) have {found}; lower it, or lower quality.prune_fraction"
            )
    elif total > left and not selection.mask_model:
        raise SettingsError(
            f"selection.ratio: {total} documents are to be kept, but of {run.num_documents} only "
            f"{left} are left ({why}); lower it, or lower quality.prune_fraction"
        )


def _check_tokens(connection: Any, run: Run) -> None:
    """Whether every document that is left has a number of tokens, where the settings need it."""
    setting = run.settings.selection.needs_tokens
    if not setting:
        return
    found = execute(
        connection,
        "SELECT shard, row, id FROM result WHERE dropped IS NULL AND (tokens IS NULL OR tokens < 0)"
        " ORDER BY shard, row LIMIT 1",
    )
    if found:
        shard, row, name = found[0]
        raise InputError(
            f"document {name} has no number of tokens, and selection.{setting} needs them; fix "
            "it, or count them with source.tokenizer (source.columns.token_count naming no column)",
            path=run.path("scores", shard),
            shard=shard,
            row=row,
            column=run.settings.source.columns.token_count,
        )


def _check_limits(connection: Any, run: Run) -> None:
    """Whether every group has what its floor asks for, and the caps leave enough.

    How well documents fill the caps depends on their order, in tokens. The cut itself is tried, in
    order of quality alone.
    """
    selection = run.settings.selection
    if not selection.limits:
        return
    column = selection.limits[0].column
    execute(connection, "CREATE TABLE groups (shard INTEGER, row BIGINT, name VARCHAR)")
    for shard in range(run.num_shards):
        execute(
            connection,
            f"INSERT INTO groups SELECT CAST(? AS INTEGER), row, {group_column(column, 's')} "
            "FROM read_parquet(?) s",
            [shard, str(run.path("scores", shard))],
        )
    unit = "1" if selection.tokens is None else "tokens"
    execute(
        connection,
        "CREATE VIEW candidates AS SELECT shard, name, quality::FLOAT AS logit, quality, id, "
        f"{unit} AS units FROM result JOIN groups USING (shard, row) WHERE dropped IS NULL",
    )
    total = budget.total_units(selection, run.num_documents)
    if selection.tokens is None:
        make_bounds(connection, selection, total, "candidates")
    else:
        cut_table(connection, selection, total)


def _write(connection: Any, run: Run, shard: int, metrics: dict[str, Any]) -> None:
    scores = run.settings.scores
    schema = schemas.quality(score.name for score in scores)
    columns = ", ".join(f"n{i}" for i in range(len(scores)))
    reader = connection.sql(
        f"SELECT id, row, {columns}, quality, dropped, {ADDED} FROM result WHERE shard = ? "
        "ORDER BY row",
        params=[shard],
    ).to_arrow_reader(BATCH_ROWS)
    expected = run.shard_rows(shard)

    def made(rows: int) -> Receipt:
        if rows != expected:
            raise AssertionError(f"shard {shard:05d}: {rows} rows joined, {expected} planned")
        return run.make_receipt("quality", shard, rows, metrics)

    path = run.local_path("quality", shard)
    write_parquet(path, schema, _renamed(reader, schema), made, storage=run.storage)


def _renamed(reader: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in reader:
        columns = [column.cast(field.type) for column, field in zip(batch, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
