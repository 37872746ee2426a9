"""Stage `pruning`: which documents of the corpus are the worst, and how many each shard has left.

Of the documents that have text and all scores, copies, contaminated documents and near-duplicates
are dropped first; of the rest, the worst floor(prune x number) by (quality, id) are pruned, exact
to the document. DuckDB reads a few columns of all shards several times, and sorts qualities out of
core; memory grows with the shards and with documents of equal quality at the border.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from datamask.config.compute import Compute
from datamask.objectives.groups import LENGTH_BINS
from datamask.quality.agreement import score_correlations
from datamask.quality.budget_checks import check_survivors
from datamask.quality.grouping import group_kinds, group_shares
from datamask.runs import schemas
from datamask.runs.output import write_output
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run
from datamask.runs.stages import stages_of
from datamask.selection.mask_model import judged_by
from datamask.storage.duckdb_scratch import SHARD_OF_FILE, execute, temporary_duckdb, value_at


def find_least(run: Run, compute: Compute) -> Receipt:
    """Write `pruning.parquet`: documents and tokens of each shard by reason.

    The receipt's metrics are of the corpus: `last`, quality and id of the best document that is
    pruned (None: none is), `below`, a quality below which all are pruned (None: none), and
    `least_quality`, the least of a document that is left; `centre`, the median of these;
    `length_edges`, the deciles of the kept documents' characters; `score_correlations` and
    `score_groups` (`quality.agreement`, `quality.grouping`); and `normalisation`, for mask models.

    A run that is judged by a mask model prunes what is below its `least_quality`.

    Raises:
        InputError, SettingsError: as `budget_checks.check_survivors`.
        RunError: what it reads is missing or stale.
    """
    settings, about = run.settings, judged_by(run)
    with survivors(run, compute) as (connection, last):
        below = about and about["least_quality"]
        metrics: dict[str, Any] = {"last": last, "below": below}
        table = connection.sql(
            "SELECT shard, dropped AS reason, count(*) AS documents, "
            "coalesce(sum(tokens), 0)::BIGINT AS tokens FROM result GROUP BY ALL "
            "ORDER BY shard, reason"
        ).to_arrow_table()
        metrics["least_quality"] = execute(
            connection, "SELECT min(quality) FROM result WHERE dropped IS NULL"
        )[0][0]
        metrics["centre"] = about.get("centre", 0.0) if about else _centre(connection)
        metrics["length_edges"] = about["length_edges"] if about else _length_edges(connection)
        names = [score.name for score in settings.scores]
        if len(names) > 1:
            raw = ", ".join(f'"raw_{name}" AS "{name}"' for name in names)
            some = " OR ".join(f'"raw_{name}" IS NOT NULL' for name in names)
            sample = connection.sql(f"SELECT {raw} FROM combined WHERE {some} ORDER BY shard, row")
            metrics["score_correlations"] = score_correlations(sample.to_arrow_table())
        if kinds := group_kinds(settings.scores):
            metrics["score_groups"] = group_shares(connection, kinds)
        metrics["normalisation"] = run.receipt("combined").metrics["normalisation"]
        check_survivors(connection, run, table)
    return write_output(run, "pruning", 0, schemas.PRUNING, [table.cast(schemas.PRUNING)], metrics)


@contextlib.contextmanager
def survivors(run: Run, compute: Compute) -> Iterator[tuple[Any, tuple[float, str] | None]]:
    """DuckDB with the view `result` (`_prune`); quality and id of the best document pruned.

    Raises:
        RunError: what it reads is missing or stale.
    """
    about = judged_by(run)
    with temporary_duckdb(run.root, compute) as connection:
        _load(connection, run)
        last = None
        if not about:
            number = execute(connection, "SELECT count(*) FROM remaining")[0][0]
            pruned = int(Fraction(str(run.settings.prune_fraction)) * number)
            last = _document_at(connection, run, pruned - 1) if pruned else None
        _prune(connection, last, about["least_quality"] if about else None)
        yield connection, last


def _load(connection: Any, run: Run) -> None:
    """Views `combined` (with shard and row) and `remaining`, and tables `near` and `tied`."""
    for shard in range(run.num_shards):
        run.receipt("combined", shard)
    paths = [str(run.path("combined", shard)) for shard in range(run.num_shards)]
    execute(connection, "SET VARIABLE files = ?", [paths])
    execute(
        connection,
        f"CREATE VIEW combined AS SELECT {SHARD_OF_FILE} AS shard, file_row_number AS row, * "
        "FROM read_parquet(getvariable('files'), filename = true, file_row_number = true)",
    )
    execute(connection, "CREATE TABLE near (shard INT, row BIGINT)")
    execute(connection, "CREATE TABLE tied (shard INT, row BIGINT, id VARCHAR)")
    if "near_duplicates" in stages_of(run.settings):
        run.receipt("near_duplicates")
        path = str(run.path("near_duplicates"))
        execute(connection, "INSERT INTO near SELECT shard, row FROM read_parquet(?)", [path])
    execute(
        connection,
        "CREATE VIEW remaining AS SELECT * FROM combined ANTI JOIN near USING (shard, row) "
        "WHERE reason IS NULL",
    )


def _document_at(connection: Any, run: Run, index: int) -> tuple[float, str]:
    """Quality and id at an index (from 0) of the order by (quality, id).

    Table `tied` gets all documents of this quality.
    """
    quality = value_at(connection, "quality", "remaining", index)
    less = "SELECT count(*) FROM remaining WHERE quality < ?"
    index -= execute(connection, less, [quality])[0][0]
    execute(
        connection,
        "CREATE TABLE equal AS SELECT shard, row FROM remaining WHERE quality = ?",
        [quality],
    )
    for (shard,) in execute(connection, "SELECT DISTINCT shard FROM equal"):
        execute(
            connection,
            "INSERT INTO tied SELECT shard, row, id FROM equal JOIN read_parquet(?) s USING (row) "
            "WHERE shard = ?",
            [str(run.path("scores", shard)), shard],
        )
    name = execute(connection, f"SELECT id FROM tied ORDER BY id LIMIT 1 OFFSET {index}")[0][0]
    return quality, name


def _prune(connection: Any, last: tuple[float, str] | None, below: float | None) -> None:
    """View `result`: `combined` with the reason to drop each document, null if it stays."""
    border, last_id = last or (below, None)
    execute(connection, "SET VARIABLE border = ?", [border])
    execute(connection, "SET VARIABLE last_id = ?", [last_id])
    execute(
        connection,
        "CREATE VIEW result AS SELECT *, CASE WHEN reason IS NOT NULL THEN reason "
        "WHEN (shard, row) IN (FROM near) THEN 'near_duplicate' "
        "WHEN quality < getvariable('border') OR (shard, row) IN "
        "(SELECT shard, row FROM tied WHERE id <= getvariable('last_id')) "
        "THEN 'pruned' END AS dropped FROM combined",
    )


def _centre(connection: Any) -> float:
    """The lower median of the quality that is left (`objectives.quality.centre_of`)."""
    rows = "result WHERE dropped IS NULL"
    number = execute(connection, f"SELECT count(*) FROM {rows}")[0][0]
    return value_at(connection, "quality", rows, (number - 1) // 2) if number else 0.0


def _length_edges(connection: Any) -> list[int] | None:
    """Borders of tenths of the documents that are left, by characters; None without text."""
    counts = execute(
        connection,
        "SELECT characters, count(*) FROM result WHERE dropped IS NULL AND characters IS NOT NULL "
        "GROUP BY ALL ORDER BY characters",
    )
    return quantiles(counts, LENGTH_BINS) if counts else None


def quantiles(counts: list[tuple[int, int]], parts: int) -> list[int]:
    """The values that divide documents into *parts* equal parts.

    The k-th is the least value that at least k / *parts* of the documents do not exceed.

    Args:
        counts: ascending values, and how often each occurs; at least one.
        parts: 10 for deciles.
    """
    upto = np.cumsum([number for _, number in counts])
    borders = np.searchsorted(upto, [-(-number * upto[-1] // parts) for number in range(1, parts)])
    return [counts[border][0] for border in borders]
