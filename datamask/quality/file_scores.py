"""Stage `file_scores`: scores from separate files, joined by id to the documents of all shards.

The files may be far larger than the corpus and in any order. Every file, and every id of the
source, is read once; DuckDB joins them out of core, score by score. Ids are compared by their MD5,
128 bits: the probability that any two of 10⁹ ids have the same is 10⁻²¹. No id occurs twice in the
files: planning refuses it, because either score could be wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from datamask.config.compute import Compute
from datamask.config.scores import FileScore
from datamask.errors import CorruptFileError, DatamaskError, InputError, shortened, together
from datamask.runs import schemas
from datamask.runs.files import read_columns
from datamask.runs.output import write_output
from datamask.runs.run import Run
from datamask.source.columns import missing_score, usable
from datamask.source.joining import digest_of_ids, load_ids
from datamask.source.opening import digest_files
from datamask.source.rows import read_all_scores
from datamask.storage.duckdb_scratch import execute, execute_with, temporary_duckdb

logger = logging.getLogger(__name__)

_GIVEN = pa.schema([("id", pa.string()), ("value", pa.float64())])
_USABLE = pa.schema([("id", pa.string()), ("usable", pa.bool_())])


def pin_files(score: FileScore, before: Run | None = None) -> str:
    """Return one digest of all files that hold a score, to pin it (`quality.kinds`)."""
    return digest_files(score.path)


def join_scores(run: Run, compute: Compute) -> None:
    """Write every `file_scores/NNNNN.parquet` that is missing or stale.

    Metric of the receipts: `ids`, a digest of the shard's ids in order. Refuses files that are
    unreadable or not as planned.
    """
    remaining = run.remaining("file_scores")
    scores = [score for score in run.settings.scores if isinstance(score, FileScore)]
    schema = schemas.file_scores(score.name for score in scores)
    with temporary_duckdb(run.root, compute) as connection:
        digests = load_ids(connection, run, remaining)
        for index, score in enumerate(scores):
            _join(connection, run, index, score)
        for shard in remaining:
            columns = [_column(connection, run, shard, index) for index in range(len(scores))]
            table = pa.Table.from_arrays(columns, schema=schema)
            write_output(run, "file_scores", shard, schema, [table], {"ids": digests[shard]})


def read_joined(
    run: Run, shard: int, name: str, ids: pa.ChunkedArray
) -> tuple[pa.Array, pa.Array | None]:
    """Read a score of the documents *ids* of a shard, null where missing; no texts were read.

    Errors are as in `read_classified`.
    """
    receipt, path = run.receipt("file_scores", shard), run.path("file_scores", shard)
    if receipt.metrics["ids"] != digest_of_ids(ids):
        raise CorruptFileError(f"{path}: its ids differ from the source's; delete it and relaunch")
    return read_columns(path, [name])[name].combine_chunks(), None


def _join(connection: Any, run: Run, index: int, score: FileScore) -> None:
    """Make table `joined<index>`: shard, row and value of file rows with a known id."""
    failures: list[DatamaskError] = []
    planned = run.pinned_revisions[score.pin_key]
    batches = (
        pa.RecordBatch.from_arrays([*both], schema=_GIVEN)
        for both in read_all_scores(score, failures, planned)
    )
    logger.info("score %s: joining %s", score.name, score.path)
    # DuckDB assumes that a stream is small and would hold it, although it may exceed the corpus. So
    # it holds the right side as written. Sorted rows let it skip other shards when one is read.
    connection.execute("SET disabled_optimizers = 'join_order,build_side_probe_side'")
    execute_with(
        connection,
        pa.RecordBatchReader.from_batches(_GIVEN, batches),
        f"CREATE TABLE joined{index} AS SELECT shard, row, coalesce(value, 'nan') AS value FROM "
        "(SELECT md5_number(id) AS key, value FROM arriving) JOIN ids USING (key) ORDER BY shard",
    )
    if failures:
        raise together(failures)


def _column(connection: Any, run: Run, shard: int, index: int) -> pa.Array:
    joined = connection.execute(
        f"SELECT row, value FROM joined{index} WHERE shard = ?", [shard]
    ).fetchnumpy()
    values = np.full(run.shard_rows(shard), np.nan)
    values[joined["row"]] = joined["value"]
    return pa.array(values, from_pandas=True)


def row_problems(
    connection: Any,
    paths: Sequence[str],
    id_at: Callable[[int, int], str],
    score: FileScore,
    planned: str,
) -> Iterator[DatamaskError]:
    """Yield problems of a score's files: unreadable, ids that repeat, documents without a score.

    The connection has table `ids` of the source: key, file, row. *paths* are the source's files,
    and *id_at* returns the id at file and row.
    """
    failures: list[DatamaskError] = []
    first: list[str] = []

    def given() -> Iterator[pa.RecordBatch]:
        for keys, values in read_all_scores(score, failures, planned):
            first.extend(map(str, keys[: 0 if first else 1].to_pylist()))
            yield pa.RecordBatch.from_arrays([keys, usable(values)], schema=_USABLE)

    execute_with(
        connection,
        pa.RecordBatchReader.from_batches(_USABLE, given()),
        "CREATE OR REPLACE TEMP TABLE given AS SELECT md5_number(id) AS key, usable FROM arriving",
    )
    if failures:
        yield from failures
        return
    twice = execute(
        connection,
        "SELECT file, ids.row, n FROM ids JOIN (SELECT key, count(*) AS n FROM given "
        "SEMI JOIN ids USING (key) GROUP BY key HAVING n > 1) USING (key) ORDER BY ALL LIMIT 1",
    )
    for file, row, count in twice:
        yield InputError(
            f"ids occur more than once, {shortened(id_at(file, row))} {count:,} times; "
            "keep one score of each",
            path=score.path,
            column=score.id_column,
        )
        return
    _warn_of_few(connection, id_at, score, first)
    if score.missing != "error":
        return
    lacking = "FROM ids i LEFT JOIN given g USING (key) WHERE NOT coalesce(g.usable, false)"
    count = execute(connection, f"SELECT count(*) {lacking}")[0][0]
    for file, row in execute(connection, f"SELECT file, i.row {lacking} ORDER BY ALL LIMIT 1"):
        yield missing_score(score, count, paths[file], row)


def _warn_of_few(
    connection: Any, id_at: Callable[[int, int], str], score: FileScore, first: list[str]
) -> None:
    """Log a warning if most documents have no score in the files, whatever `missing` says."""
    [(matched, total)] = execute(
        connection,
        "SELECT (SELECT count(*) FROM ids SEMI JOIN given USING (key)), count(*) FROM ids",
    )
    if 2 * matched < total:
        [ours] = execute(connection, "SELECT file, row FROM ids ORDER BY ALL LIMIT 1")
        logger.warning(
            "score %s: %s has the ids of only %d of %d documents; its first id is %r, that of the "
            "source %r; check id_column of the score, and source.columns.id",
            *(score.name, score.path, matched, total, "".join(first)[:80], id_at(*ours)[:80]),
        )
