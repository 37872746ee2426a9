"""Stage `quality`: all that is known of each document before embedding, and why it is dropped.

Reasons apply in the order of `schemas.DROP_REASONS`, each only to documents that no earlier reason
drops, so no document is dropped in favour of one that is itself dropped. Last, the worst
floor(prune x number) of the survivors by (quality, id) are pruned, exact to the document. One
DuckDB database compares all documents, outside memory; only rows of equal quality at the border are
in memory.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from fractions import Fraction
from itertools import accumulate, combinations
from typing import Any

import numpy as np
import pyarrow as pa

from datamask.config import recipe
from datamask.config.compute import Compute
from datamask.config.selection import LENGTH_BINS
from datamask.hygiene.contamination import common_ngrams
from datamask.hygiene.similar_pairs import compared_pairs, find_near_duplicates
from datamask.objectives.level import NATURAL, Level
from datamask.quality.combining import join_documents, value_of, write_shards
from datamask.quality.counts import Reasons, check_survivors, count_documents
from datamask.quality.fitting import rank_correlation
from datamask.quality.grouping import group_kinds, group_shares
from datamask.runs import schemas
from datamask.runs.budget import total_units
from datamask.runs.run import Run
from datamask.selection.model_file import judged_by
from datamask.storage.duckdb_scratch import execute, is_sampled, temporary_duckdb, value_at

logger = logging.getLogger(__name__)

SAMPLE_DOCUMENTS = 100_000
"""Approximate number of documents whose scores are correlated: a standard error of about 0.003."""


def drop(run: Run, compute: Compute) -> None:
    """Write `quality/`: scores, quality, and why a document is dropped, for all shards.

    Metrics of the receipts: `kept`, `kept_before` (in earlier shards), `kept_total`, the same three
    for `tokens`, `dropped` by reason, `missing` by score; for the surviving documents
    `length_edges`, the deciles of their characters, and `centre` and `unit` of their quality
    (`objectives.level`). The first shard's also has `least_quality`, the least of a surviving
    document, the fraction `prune_fraction`, `score_correlations` and `score_groups`
    (`quality.grouping`), `near_duplicates` (`compared_pairs`), the `common_ngrams` of benchmarks,
    and the `normalisation` for mask models (`combining.Scales`).

    A run that a mask model judges prunes documents below the model's `least_quality`.

    Raises:
        InputError, SettingsError: as in `join_documents` and `check_survivors`.
        RunError: an input file is missing or stale.
    """
    about = judged_by(run)
    schema = schemas.quality(score.name for score in run.settings.scores)
    with temporary_duckdb(run.root, compute) as connection:
        scales = join_documents(connection, run, about)
        find_near_duplicates(connection, run)
        fraction = _prune(connection, run, about)
        counts = count_documents(connection)
        check_survivors(connection, run, counts)
        counted = _counted(counts, run.num_shards)
        of_all = {
            "length_edges": about["length_edges"] if about else _length_edges(connection),
            **(_level_of_model(about) if about else _level_of_quality(connection)),
        }
        of_first = {**_compared(connection, run), "normalisation": scales}
        of_first["prune_fraction"] = fraction

        def metrics(shard: int) -> dict[str, Any]:
            scores = run.receipt("scores", shard).metrics["scores"]
            missing = {name: score["missing"] for name, score in scores.items()}
            of_shard = {**counted[shard], **of_all, "missing": missing}
            return of_shard | (of_first if shard == 0 else {})

        write_shards(connection, run, "quality", "result", schema, metrics)


def _prune(connection: Any, run: Run, about: dict[str, Any] | None) -> float | None:
    """Make view `result`: `joined` with the reason to drop each document, null if it stays.

    Returns the fraction that is pruned, as set or, if the budget needs more documents, less; None
    if a mask model prunes.
    """
    execute(
        connection,
        "CREATE VIEW remaining AS SELECT * FROM joined ANTI JOIN near USING (shard, row) "
        "WHERE reason IS NULL",
    )
    border, last, fraction = (about["least_quality"] if about else None), None, None
    if not about:
        fraction = run.settings.prune_fraction
        if run.settings.pruning_follows:
            [figures] = run.receipt("example_models").metrics.values()
            fraction, _ = recipe.following(figures["auc"])
        number = execute(connection, "SELECT count(*) FROM remaining")[0][0]
        pruned = int(Fraction(str(fraction)) * number)
        if run.settings.pruning_gives_way and (spare := _spare(connection, run, number)) < pruned:
            logger.warning(
                "quality: the budget needs more documents than the rule would leave, so the worst "
                "%.1f %% are pruned instead of %.1f %%",
                100 * spare / number,
                100 * fraction,
            )
            pruned, fraction = spare, spare / number
        if pruned:
            border = value_at(connection, "quality", "remaining", pruned - 1)
            less = "SELECT count(*) FROM remaining WHERE quality < ?"
            pruned -= execute(connection, less, [border])[0][0]
            equal = f"remaining WHERE quality = '{border!r}'::DOUBLE"
            last = value_at(connection, "id", equal, pruned - 1)
    execute(connection, "SET VARIABLE border = ?", [border])
    execute(connection, "SET VARIABLE last = ?", [last])
    execute(
        connection,
        "CREATE VIEW result AS SELECT joined.*, near_duplicate_of, near_duplicate_similarity, "
        "CASE WHEN near_duplicate_of IS NOT NULL THEN 'near_duplicate' "
        "WHEN reason IS NOT NULL THEN reason WHEN quality < getvariable('border') "
        "OR (quality = getvariable('border') AND id <= getvariable('last')::VARCHAR) THEN 'pruned' "
        "END AS dropped FROM joined LEFT JOIN near USING (shard, row)",
    )
    return fraction


def _spare(connection: Any, run: Run, number: int) -> int:
    """Return how many of *number* documents, the worst, the budget does not need."""
    selection = run.settings.selection
    total = total_units(selection, run.num_documents)
    if selection.tokens is None:
        return max(0, number - total)
    query = (
        "SELECT count(*) FROM (SELECT sum(tokens) OVER () - sum(tokens) OVER (ORDER BY quality, id "
        "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS others FROM remaining) "
        "WHERE others >= ?"
    )
    return int(execute(connection, query, [total])[0][0])


def _compared(connection: Any, run: Run) -> dict[str, Any]:
    """Return the least surviving quality, and how scores and groups compare."""
    least = execute(connection, "SELECT min(quality) FROM result WHERE dropped IS NULL")[0][0]
    metrics: dict[str, Any] = {"least_quality": least}
    if run.settings.quality.near_duplicates:
        metrics["near_duplicates"] = compared_pairs(connection)
    if known := run.settings.quality.contamination:
        metrics["common_ngrams"] = common_ngrams(connection, known)
    if len(run.settings.scores) > 1:
        raw = ", ".join(f'{value_of(score)} AS "{score.name}"' for score in run.settings.scores)
        sample = connection.sql(
            f"SELECT {raw} FROM documents s "
            f"WHERE {is_sampled(run.num_documents, SAMPLE_DOCUMENTS)} ORDER BY shard, row"
        )
        metrics["score_correlations"] = _correlations(sample.to_arrow_table())
    if kinds := group_kinds(run.settings.scores):
        metrics["score_groups"] = group_shares(connection, kinds)
    return metrics


def _correlations(table: pa.Table) -> list[dict[str, Any]]:
    """Compute Spearman's correlation of every pair of scores: columns, null where missing.

    Returns:
        For each pair `score`, `other`, `correlation` (in [-1, 1]; None if one is constant) and
        `documents` (number that have both).
    """
    pairs = []
    for score, other in combinations(table.column_names, 2):
        both = table.select([score, other]).drop_null()
        x, y = (column.to_numpy() for column in both.columns)
        pair = {"score": score, "other": other, "documents": len(both)}
        pairs.append(pair | {"correlation": rank_correlation(x, y)})
    return pairs


def _level_of_model(about: dict[str, Any]) -> dict[str, float]:
    """Return the level of quality on which a mask model was learned; older ones have no unit."""
    return {"centre": about.get("centre", 0.0), "unit": about.get("quality_unit", 1.0)}


def _level_of_quality(connection: Any) -> dict[str, float]:
    """Return the level of the surviving quality in `result`, as `objectives.level.Level.of`."""
    rows = "result WHERE dropped IS NULL"
    extremes = f"SELECT count(*), min(quality), max(quality) FROM {rows}"
    [(number, least, largest)] = execute(connection, extremes)
    if not number:
        return asdict(NATURAL)
    centre = value_at(connection, "quality", rows, (number - 1) // 2)
    return asdict(Level.between(least, centre, largest))


def _length_edges(connection: Any) -> list[int] | None:
    """Return the deciles of the surviving documents by characters; None without text."""
    counts = execute(
        connection,
        "SELECT characters, count(*) FROM result WHERE dropped IS NULL AND characters IS NOT NULL "
        "GROUP BY ALL ORDER BY characters",
    )
    return quantiles(counts, LENGTH_BINS) if counts else None


def quantiles(counts: list[tuple[int, int]], parts: int) -> list[int]:
    """Return values that divide documents into *parts* equal parts; *counts* ascend by value.

    The k-th is the least value that at least k / *parts* of the documents do not exceed.
    """
    upto = np.cumsum([number for _, number in counts])
    borders = np.searchsorted(upto, [-(-number * upto[-1] // parts) for number in range(1, parts)])
    return [counts[border][0] for border in borders]


def _counted(counts: Reasons, shards: int) -> list[dict[str, Any]]:
    """Return the metrics of each shard that count documents and tokens."""
    counted: list[dict[str, Any]] = [
        {"dropped": dict.fromkeys(schemas.DROP_REASONS, 0), "kept": 0, "tokens": 0}
        for _ in range(shards)
    ]
    for shard, reason, documents, tokens in counts:
        if reason:
            counted[shard]["dropped"][reason] = documents
        else:
            counted[shard] |= {"kept": documents, "tokens": tokens}
    for name in ("kept", "tokens"):
        *before, total = accumulate((metrics[name] for metrics in counted), initial=0)
        for metrics, number in zip(counted, before, strict=True):
            metrics |= {f"{name}_before": number, f"{name}_total": total}
    return counted
