"""Stage `documents`: a shard's documents with all that is known of each, and counts of them.

`documents/NNNNN.parquet` has a row per document. The subset, the published scores and the views
`documents` and `selection` of `datamask query` are made of these rows. Values that add up over
shards are in the metrics of its receipt (documents, characters, tokens, sums and extremes of
scores) and, by group and fate, in `tallies/NNNNN.parquet`. `analysis.composition` adds them up.

Computed from `scores/`, `quality/`, `topics/` and `selection/`. Sums add integers, or use one
thread, so that equal runs give equal values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from datamask.analysis.composition import SELECTIONS
from datamask.config.compute import Compute
from datamask.config.group import OF_SOURCE
from datamask.config.selection import NO_GROUP
from datamask.errors import CorruptFileError
from datamask.runs import budget, schemas
from datamask.runs.files import read_columns, write_parquet
from datamask.runs.output import write_output
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run
from datamask.selection.repeats import added_repeat
from datamask.selection.threshold import group_column
from datamask.storage.duckdb_scratch import ROWS_AT_ONCE, execute, stream, temporary_duckdb

# Rows are joined by their place: all files are in the source's order, and files of masks, topics
# and vectors have a row per document that is not dropped.
_DOCUMENTS = """
WITH joined AS (
    SELECT $shard::INTEGER AS shard, s.* EXCLUDE (content)
        REPLACE ({groups}, least(s.text_read, c.text_read) AS text_read),
        {own}coalesce(c.topic, '{none}') AS topic, q.quality, q.dropped, {added}, c.logit,
        coalesce(c.selected, false) AS selected
    FROM read_parquet($scores, hive_partitioning = false) s
    POSITIONAL JOIN read_parquet($quality, hive_partitioning = false) q
    POSITIONAL JOIN candidates c WHERE s.row = q.row AND s.id = q.id
)
SELECT *, dropped IS NULL AND (quality > $least OR (quality = $least AND id <= $last))
    AS top_quality{repeat} FROM joined
"""


def tabulate(run: Run, shard: int, compute: Compute) -> Receipt:
    """Write `documents/NNNNN.parquet` and `tallies/NNNNN.parquet`.

    Raises:
        RunError: the shard's mask, or the repeats, are missing or stale.
        CorruptFileError: the files of the shard do not hold the same documents, or the mask misses
            the budget.
        StorageError: the disk is full.
    """
    run.receipt("selection", shard)
    names = [score.name for score in run.settings.scores]
    schema = schemas.documents(run.settings)
    with temporary_duckdb(run.root, compute) as connection:
        # Sums of floats depend on how threads divide the rows.
        connection.execute("SET threads = 1")
        documents = _join(connection, run, shard).select(schema.names).cast(schema)
        metrics = {
            name: _totals(connection, where, ["quality", *names])
            for name, where in SELECTIONS.items()
        }
        path = run.root / run.beside("documents", shard)[0]
        counted = stream(connection, _tallies(run.settings.source.kinds))
        tallies = (batch.cast(schemas.TALLIES) for batch in counted)
        write_parquet(path, schemas.TALLIES, tallies, storage=run.storage)
        rows = documents.to_batches(ROWS_AT_ONCE)
        return write_output(run, "documents", shard, schema, rows, {"totals": metrics})


def _join(connection: Any, run: Run, shard: int) -> pa.Table:
    """Return the shard's documents in order, and make table `documents` for the connection."""
    candidates = _candidates(run, shard)
    selected = pc.sum(candidates["selected"]).as_py() or 0
    if selected != _expected(run, shard):
        raise CorruptFileError(
            f"{run.path('selection', shard)}: {selected} documents are selected where "
            f"{_expected(run, shard)} are wanted; delete it and relaunch"
        )
    connection.register("candidates", candidates)
    last = None
    if run.settings.selection.scope == "corpus":
        last = run.receipt("threshold").metrics["top_quality"]
    elif selected:
        [last] = execute(
            connection,
            "SELECT quality, id FROM read_parquet(?, hive_partitioning = false) "
            "WHERE dropped IS NULL ORDER BY quality DESC, id LIMIT 1 OFFSET ?",
            [str(run.path("quality", shard)), selected - 1],
        )
    least, last_id = last or (math.inf, "")
    query = _DOCUMENTS.format(
        none=NO_GROUP,
        groups=", ".join(f"{group_column(kind, 's')} AS {kind}" for kind in OF_SOURCE),
        own="".join(
            f'{group_column(kind, "c")} AS "{kind}", ' for kind in run.settings.source.groups
        ),
        added=", ".join(
            f"q.{name}" for name in (*schemas.NEAR_DUPLICATE.names, *schemas.CONTAMINATION.names)
        ),
        repeat=added_repeat(run),
    )
    paths = {"scores": str(run.path("scores", shard)), "quality": str(run.path("quality", shard))}
    parameters = {"shard": shard, "least": least, "last": last_id, **paths}
    documents = connection.sql(query, params=parameters).to_arrow_table()
    connection.register("documents", documents)
    if len(documents) != run.shard_rows(shard):
        raise CorruptFileError(
            f"{run.path('quality', shard)}: agrees with the scores on {len(documents)} of "
            f"{run.shard_rows(shard)} documents; delete it and relaunch"
        )
    return documents


def _candidates(run: Run, shard: int) -> pa.Table:
    """Return columns that are not facts, with a row per document.

    Columns that only candidates have are null if a document is dropped.
    """
    columns = {"selection": ["logit", "selected"]}
    columns |= {"topics": ["topic"]} if run.settings.topics else {}
    columns |= {"embeddings": ["text_read"]} if run.settings.has_vectors else {}
    is_left = pc.is_null(read_columns(run.path("quality", shard), ["dropped"])["dropped"])
    number, counted = pc.sum(is_left).as_py(), pc.cumulative_sum(is_left.cast(pa.int64()))
    rows = pc.if_else(is_left, pc.subtract(counted, 1), None)
    unknown = {"topic": pa.string(), "text_read": pa.float32()}
    arrays = {name: pa.nulls(len(is_left), kind) for name, kind in unknown.items()}
    for stage, names in columns.items():
        table = read_columns(run.path(stage, shard), names)
        if len(table) != number:
            raise CorruptFileError(
                f"{run.path(stage, shard)}: {len(table)} documents, but "
                f"{run.path('quality', shard)} has {number}; delete it and relaunch"
            )
        arrays |= {name: table[name].take(rows) for name in names}
    if own := [*run.settings.source.groups]:
        arrays |= {name: read_columns(run.path("groups", shard), [name])[name] for name in own}
    return pa.table(arrays)


def _expected(run: Run, shard: int) -> int:
    """Return the number of documents to select from a shard."""
    selection = run.settings.selection
    if selection.mask_model:
        return int(run.receipt("selection", shard).metrics["num_selected"])
    if selection.has_cut:
        return int(run.receipt("threshold").metrics["selected"][shard])
    survivors = budget.Survivors.of(run.receipt("quality", shard).metrics)
    return budget.shard_units(selection, run.num_documents, survivors)


def _tallies(kinds: Sequence[str]) -> str:
    """Return SQL that counts documents by kind and name of their group, and fate.

    Documents without a topic are in no topic. Sums of whole numbers do not depend on their order,
    unlike sums of floats.
    """
    quoted = [f'"{kind}"' for kind in kinds]
    cases = " ".join(f"WHEN grouping(\"{kind}\") = 0 THEN '{kind}'" for kind in kinds)
    return f"""
SELECT CASE {cases}
        WHEN grouping(known_topic) = 0 THEN 'topic'
        WHEN grouping(octave) = 0 THEN 'length' ELSE 'all' END AS kind,
    CASE kind WHEN 'all' THEN 'all' WHEN 'length' THEN if(octave < 6, 'below 64',
        format('{{:,}} to {{:,}}', 1::BIGINT << octave, (2::BIGINT << octave) - 1))
    ELSE coalesce({", ".join(quoted)}, known_topic) END AS name, fate,
    count(*) AS documents, sum(characters)::BIGINT AS characters, sum(tokens)::BIGINT AS tokens,
    count(quality) AS scored, sum(round(1e6 * quality)::BIGINT)::BIGINT AS quality
FROM (SELECT *, nullif(topic, '{NO_GROUP}') AS known_topic,
    if(characters < 64, 5, floor(log2(characters))::INT) AS octave,
    if(selected, 'selected', coalesce(dropped, 'left out')) AS fate FROM documents)
GROUP BY fate, GROUPING SETS ((), {", ".join((*quoted, "known_topic", "octave"))})
HAVING name IS NOT NULL ORDER BY kind, name, fate
"""


def _totals(connection: Any, where: str, scores: list[str]) -> dict[str, Any]:
    """Return a selection's documents, characters, tokens (null if unknown) and `scores`."""
    # Score names match [a-z][a-z0-9_]* (config.Score), so they are safe as identifiers.
    of_scores = ", ".join(
        f"""'{name}': {{'mean': avg("{name}"), 'least': min("{name}"), 'largest': max("{name}"),
        'missing': count(*) - count("{name}")}}"""
        for name in scores
    )
    [[totals]] = execute(
        connection,
        "SELECT {'documents': count(*), 'characters': sum(characters)::BIGINT, "
        f"'tokens': sum(tokens)::BIGINT, 'scores': {{{of_scores}}}}} FROM documents WHERE {where}",
    )
    return dict(totals)
