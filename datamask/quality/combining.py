"""Stage `combined`: the scores of all documents on the scale of the corpus, and their weighted sum.

Normalisations: `rank` is the share of documents with a smaller value, averaged over ties, in
[0, 1); `z-score` has mean 0 and deviation 1; `min-max` is in [0, 1]; `none` is the value. DuckDB
compares all documents outside memory: texts by their hash, values by their rank, groups by name.
Nothing it computes depends on the order of rows, so neither on threads: counts and sums of groups
are whole numbers, means and deviations come from the receipts in the order of shards, and all else
is computed document by document.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa

from datamask.config.compute import Compute
from datamask.config.inputs import Score
from datamask.errors import InputError
from datamask.quality.agreement import is_sampled
from datamask.quality.grouping import create_groups, group_columns, group_kinds, mixed_with_groups
from datamask.quality.held_out import is_drawn
from datamask.quality.moments import merged_moments
from datamask.runs import schemas
from datamask.runs.in_progress import advance
from datamask.runs.output import write_output
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run
from datamask.selection.mask_model import judged_by
from datamask.storage.duckdb_scratch import SHARD_OF_FILE, execute, stream, temporary_duckdb

QUANTILES = 1024
"""Resolution of the ranks that are kept for documents of later runs: 1/1024."""

Metrics = dict[str, list[Any]]
"""What normalises the scores of later documents, by name: offset and divisor or, for normalisation
`rank`, values and their ranks, ascending, at most 1025 of each."""


def combine(run: Run, compute: Compute) -> None:
    """Write `combined/`: quality, and why a document is dropped before pruning, for all shards.

    Near-duplicates are not known yet. A run that is judged by a mask model has the scales of the
    model's corpus. The metrics of the first shard's receipt have the `normalisation` (`Metrics`).

    Raises:
        InputError: a score is missing and its policy is `error`, or its values are too large.
        RunError: the output of an earlier stage is missing or stale.
    """
    scores, remaining = run.settings.scores, run.remaining("combined")
    receipts = [run.receipt("scores", shard) for shard in range(run.num_shards)]
    _refuse_missing(run, receipts)
    about = judged_by(run)
    known = about["normalisation"] if about else {}
    with temporary_duckdb(run.root, compute) as connection:
        _load(connection, run)
        metrics: Metrics = {}
        wholes: list[str] = []
        for index, score in enumerate(scores):
            if score.normalisation == "rank":
                metrics[score.name] = _rank(connection, index, score, known.get(score.name))
                wholes.append(f"rank{index}.share")
                continue
            offset, divisor = known.get(score.name) or merged_moments(run, receipts, score).scale(
                score.normalisation
            )
            if score.normalisation != "none":
                metrics[score.name] = [offset, divisor]
            wholes.append(f"({value_of(score)} - {_double(offset)}) / {_double(divisor)}")
        _find_copies(connection, run)
        _join(connection, run, wholes, remaining)
        names = [score.name for score in scores]
        schema = schemas.combined(names, [f"g_{kind}" for kind in group_kinds(scores)])
        columns = ", ".join(f'"{name}"' for name in schema.names)
        for done, shard in enumerate(remaining):
            query = f"SELECT {columns} FROM joined WHERE shard = {shard} ORDER BY row"
            batches = (batch.cast(schema) for batch in stream(connection, query))
            of_corpus = {"normalisation": metrics} if shard == 0 else {}
            receipt = write_output(run, "combined", shard, schema, batches, of_corpus)
            assert receipt.rows == run.shard_rows(shard)
            advance(done + 1, len(remaining), "shards")


def value_of(score: Score) -> str:
    """SQL: the raw value of a score in a row of `documents` (named s), null where missing."""
    # Score names match [a-z][a-z0-9_]* (config.Score), so they are safe as identifiers.
    if score.missing != "fill":
        return f's."{score.name}"'
    return f'coalesce(s."{score.name}", {_double(score.fill_value + 0.0)})'


def _double(value: float) -> str:
    return f"'{value!r}'::DOUBLE"


def _refuse_missing(run: Run, receipts: list[Receipt]) -> None:
    for score, receipt in product(run.settings.scores, receipts):
        missing = receipt.metrics["scores"][score.name]["missing"]
        if missing and score.missing == "error":
            raise InputError(
                f"score missing, NaN or infinite in {missing} documents; fix them, or set "
                f"missing of score {score.name} to drop or fill",
                path=run.path("scores", receipt.unit),
                shard=receipt.unit,
                column=score.name,
            )


def _load(connection: Any, run: Run) -> None:
    """View `documents`: the `scores` of all shards, with shard and the groups g_<kind>."""
    paths = [str(run.path("scores", shard)) for shard in range(run.num_shards)]
    execute(connection, "SET VARIABLE scores = ?", [paths])
    query = (
        f"SELECT {SHARD_OF_FILE} AS shard, * FROM "
        "read_parquet(getvariable('scores'), filename = true)"
    )
    columns, joins = group_columns(connection, run)
    execute(connection, f"CREATE VIEW documents AS SELECT s.*{columns} FROM ({query}) s {joins}")


def _rank(
    connection: Any, index: int, score: Score, known: list[list[float]] | None
) -> list[list[float]]:
    """Table `rank<index>`: each value of a score, and its share.

    It is (2 x smaller + equal - 1) / (2 x all) or, with *known* values and shares, between theirs.
    Returns values and shares for documents of later runs.
    """
    counted = (
        f"SELECT {value_of(score)} AS value, count(*) AS equal FROM documents s "
        "WHERE value IS NOT NULL GROUP BY value"
    )
    share = (
        "(2 * sum(equal) OVER (ORDER BY value ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) "
        "- equal - 1)::DOUBLE / (2 * sum(equal) OVER ())::DOUBLE"
    )
    if known:
        share = f"known{index}(value)"
        interpolate = partial(_interpolated, known)
        connection.create_function(f"known{index}", interpolate, ["DOUBLE"], "DOUBLE", type="arrow")
    execute(
        connection, f"CREATE TABLE rank{index} AS SELECT value, {share} AS share FROM ({counted})"
    )
    points = execute(
        connection,
        f"SELECT floor(share * {QUANTILES})::INT, min(value), min(share) FROM rank{index} "
        f"GROUP BY ALL UNION ALL SELECT {QUANTILES}, max(value), max(share) FROM rank{index} "
        "HAVING count(*) > 0 ORDER BY 1, 2",
    )
    return known or [[value for _, value, _ in points], [share for *_, share in points]]


def _interpolated(known: list[list[float]], values: pa.ChunkedArray) -> pa.Array:
    return pa.array(np.interp(values.to_numpy(), known[0], known[1]))


def _find_copies(connection: Any, run: Run) -> None:
    """Table `copies`: documents with the text of a held-out one, or of one that goes before.

    The `copy` is `held_out` or `duplicate`. A document without a score is dropped itself, so others
    are not dropped in its favour.
    """
    settings = run.settings
    scored = " AND ".join(
        f's."{score.name}" IS NOT NULL' for score in settings.scores if score.missing != "fill"
    )
    position = "(shard::HUGEINT << 64 | row::HUGEINT)"
    drops = settings.quality.duplicates == "drop"
    if not (drops or settings.evaluation.hold_out):
        execute(connection, "CREATE TABLE copies (shard INT, row BIGINT, copy VARCHAR)")
        return
    execute(
        connection,
        "CREATE TABLE copies AS WITH texts AS (SELECT shard, row, content, "
        f"{is_drawn(settings)} AS drawn, {scored or 'true'} AS scored FROM documents s "
        "WHERE content IS NOT NULL AND characters > 0), repeated AS (SELECT content, "
        f"bool_or(drawn) AS held_out, min({position}) FILTER (scored) AS first FROM texts "
        "GROUP BY content HAVING count(*) > 1 OR held_out) SELECT shard, row, CASE WHEN held_out "
        f"THEN 'held_out' WHEN {drops} AND scored AND first <> {position} THEN 'duplicate' END "
        "AS copy FROM texts JOIN repeated USING (content) WHERE copy IS NOT NULL",
    )


def _join(connection: Any, run: Run, wholes: list[str], remaining: list[int]) -> None:
    """Table `joined`: the columns of `combined/`, with shard and row, of the remaining shards.

    *wholes* are SQL: the scores normalised over the corpus.
    """
    settings, known = run.settings, run.settings.quality.contamination
    names, kinds = [score.name for score in settings.scores], group_kinds(settings.scores)
    columns, joins = ["s.shard", "s.row", "s.characters", "s.tokens"], []
    total = whole_total = "0.0"
    for index, (score, whole) in enumerate(zip(settings.scores, wholes, strict=True)):
        normalised, value = whole, value_of(score)
        if score.normalisation == "rank":
            joins.append(f"LEFT JOIN rank{index} ON rank{index}.value = {value}")
        if score.normalise_within != "none":
            create_groups(connection, index, score, value)
            normalised, joined = mixed_with_groups(index, score, value, whole)
            joins += joined
        columns.append(f'{normalised} AS "{score.name}"')
        total += f" + {_double(score.weight)} * ({normalised})"
        whole_total += f" + {_double(score.weight)} * ({whole})"
        if len(names) > 1:
            columns.append(
                f'CASE WHEN {is_sampled(run.num_documents)} THEN {value} END AS "raw_{score.name}"'
            )
    contaminated = "false"
    if known is not None and known.action == "drop":
        for shard in range(run.num_shards):
            run.receipt("screening", shard)
        paths = [str(run.path("screening", shard)) for shard in range(run.num_shards)]
        execute(connection, "SET VARIABLE screening = ?", [paths])
        joins.append(
            f"LEFT JOIN (SELECT {SHARD_OF_FILE} AS shard, row FROM read_parquet(getvariable("
            "'screening'), filename = true) WHERE contaminated_by IS NOT NULL) contaminated "
            "ON contaminated.shard = s.shard AND contaminated.row = s.row"
        )
        contaminated = "contaminated.row IS NOT NULL"
    long = run.receipt("scores", 0).metrics["long"]
    too_long = f"s.characters > {long['bound']}" if long["policy"] == "drop" else "false"
    columns += [f"{total} + 0.0 AS quality", f"{whole_total} + 0.0 AS whole_quality"]
    columns += [f"s.g_{kind}" for kind in kinds]
    columns.append(
        f"CASE WHEN s.characters = 0 THEN 'empty' WHEN {too_long} THEN 'too_long' "
        f"WHEN copy = 'held_out' OR {is_drawn(settings)} THEN 'held_out' "
        f"WHEN ({total}) IS NULL THEN 'missing-score' WHEN copy = 'duplicate' THEN 'duplicate' "
        f"WHEN {contaminated} THEN 'contaminated' END AS reason"
    )
    shards = ", ".join(map(str, remaining))
    execute(
        connection,
        f"CREATE TABLE joined AS SELECT {', '.join(columns)} FROM documents s "
        "LEFT JOIN copies ON copies.shard = s.shard AND copies.row = s.row "
        f"{' '.join(joins)} WHERE s.shard IN ({shards}) ORDER BY s.shard, s.row",
    )
