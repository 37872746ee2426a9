"""Scores normalised within topics: stage `topic_quality`, after documents are embedded.

Stage `quality` prunes without these scores, because topics are clusters of the vectors of documents
that are left. Here each of these scores is normalised within the topics, as `quality.grouping` does
within groups that are known earlier, and added to the quality that the learner reads.
"""

from __future__ import annotations

from typing import Any

from datamask.config.compute import Compute
from datamask.config.selection import NO_GROUP
from datamask.quality.combining import double, load_documents, rows_of, value_of, write_shards
from datamask.quality.dropping import level_of_quality
from datamask.quality.grouping import create_groups, group_shares, mixed_with_groups
from datamask.runs import schemas
from datamask.runs.run import Run
from datamask.selection.documents import check_rows
from datamask.storage.duckdb_scratch import execute, temporary_duckdb


def normalise_within_topics(run: Run, compute: Compute) -> None:
    """Write `topic_quality/`: `quality/` with the scores within topics added.

    A document without a topic, which is dropped, has these scores as normalised over the corpus.
    The metrics of the receipts are those of `quality`, with another `centre` and, of the
    first shard, more `score_groups` (`quality.dropping`).

    Raises:
        RunError: what it reads is missing or stale.
        CorruptFileError: a shard's topics are of more or fewer documents than are left.
    """
    of_shards = [run.receipt("quality", shard).metrics for shard in range(run.num_shards)]
    schema = schemas.quality(score.name for score in run.settings.scores)
    with temporary_duckdb(run.root, compute) as connection:
        execute(connection, "CREATE TABLE topics (shard INT, row BIGINT, topic VARCHAR)")
        for shard, metrics in enumerate(of_shards):
            check_rows(run, "topics", shard, metrics["kept"])
            paths = [str(run.path(stage, shard)) for stage in ("quality", "topics")]
            execute(
                connection,
                f"INSERT INTO topics SELECT {shard}, row, topic FROM (SELECT row FROM "
                "read_parquet(?, hive_partitioning = false) WHERE dropped IS NULL) POSITIONAL JOIN "
                "read_parquet(?, hive_partitioning = false)",
                paths,
            )
        _add_scores(connection, run)
        level = level_of_quality(connection)
        groups = [*of_shards[0].get("score_groups", []), *group_shares(connection, ["topic"])]

        def metrics_of(shard: int) -> dict[str, Any]:
            return of_shards[shard] | level | ({"score_groups": groups} if shard == 0 else {})

        write_shards(connection, run, "topic_quality", "result", schema, metrics_of)


def _add_scores(connection: Any, run: Run) -> None:
    """Table `result`: stage `quality` with the scores added, and what `group_shares` reads.

    The table `topics` has shard, row and topic of the embedded documents.
    """
    before = rows_of(connection, run, "quality")
    load_documents(connection, run, ["topic"])
    total = whole_total = "q.quality"
    changed, joins = [], []
    for index, score in enumerate(run.settings.scores_within_topics):
        value, whole = value_of(score), f'q."{score.name}"'
        create_groups(connection, index, score, value)
        mixed, joined = mixed_with_groups(index, score, value, whole)
        joins += joined
        changed.append(f'coalesce({mixed}, {whole}) AS "{score.name}"')
        total += f" + {double(score.weight)} * coalesce({mixed}, {whole})"
        whole_total += f" + {double(score.weight)} * {whole}"
    execute(
        connection,
        f"CREATE TABLE result AS SELECT q.* REPLACE ({total} + 0.0 AS quality, "
        f"{', '.join(changed)}), {whole_total} + 0.0 AS whole_quality, "
        f"coalesce(s.g_topic, '{NO_GROUP}') AS g_topic FROM {before} q "
        f"JOIN documents s ON s.shard = q.shard AND s.row = q.row {' '.join(joins)}",
    )
