"""Decides which documents are dropped before embedding, and for which reason.

Reasons apply in the order of `schemas.DROP_REASONS`, each only to the documents that are left, so
no document is dropped in favour of one that is itself dropped. `quality.combining` creates the
tables. Near-duplicates are clustered over the signatures of all shards, which are gathered in an
unnamed temporary file.
"""

from __future__ import annotations

import tempfile
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

from datamask.config.settings import Settings
from datamask.hygiene.minhash import NUMBERS, cluster, read_signatures
from datamask.runs import schemas
from datamask.runs.files import read_columns
from datamask.runs.run import Run

ADDED = ", ".join(["near_duplicate_of", *schemas.CONTAMINATION.names])
"""Columns of `quality/` with the evidence for which a document was dropped or flagged."""


def execute(connection: Any, query: str, parameters: list[Any] | None = None) -> list[Any]:
    """The rows of a query."""
    rows: list[Any] = connection.execute(query, parameters or []).fetchall()
    return rows


def is_drawn(settings: Settings) -> str:
    """Whether the document of a column `id` is held out: SQL, and the same on every machine.

    The last 8 bytes of the MD5 of seed and id, little-endian, are below the share of 2⁶⁴.
    """
    share = int(Fraction(str(settings.evaluation.hold_out)) * 2**64)
    return f"md5_number_lower('{settings.seed}/' || id) < {share}"


def find_duplicates(connection: Any, run: Run) -> None:
    """Create table `firsts`: the hash of each text that occurs repeatedly, and its first place."""
    wanted = run.settings.quality.duplicates == "drop"
    # A document without a score is dropped itself, so others must not be dropped in its favour.
    scored = " AND ".join(f"v{i} IS NOT NULL" for i in range(len(run.settings.scores)))
    execute(
        connection,
        "CREATE TABLE firsts AS SELECT content, min(shard::HUGEINT << 64 | row::HUGEINT) AS place "
        "FROM raw WHERE content IS NOT NULL AND NOT empty AND NOT held_out "
        f"AND {scored} AND CAST(? AS BOOLEAN) "
        "GROUP BY content HAVING count(*) > 1",
        [wanted],
    )


def drop(connection: Any, run: Run, least_quality: float | None = None) -> None:
    """Create view `result`: `scored` with the reason to drop each document and columns `ADDED`.

    With *least_quality*, documents below it are pruned instead of a share of the corpus.
    """
    _load_contaminated(connection, run)
    execute(connection, "CREATE TABLE near (shard INT, row BIGINT, near_duplicate_of VARCHAR)")
    known = run.settings.quality.contamination
    drops = str(known is not None and known.action == "drop")
    execute(
        connection,
        f"CREATE VIEW judged AS SELECT scored.*, {ADDED}, CASE WHEN empty THEN 'empty' "
        "WHEN held_out THEN 'held_out' "
        "WHEN quality IS NULL THEN 'missing-score' WHEN repeated THEN 'duplicate' "
        f"WHEN {drops} AND contaminated_by IS NOT NULL THEN 'contaminated' "
        "WHEN near_duplicate_of IS NOT NULL THEN 'near_duplicate' END AS reason FROM scored "
        "LEFT JOIN contaminated USING (shard, row) LEFT JOIN near USING (shard, row)",
    )
    if run.settings.quality.near_duplicates is not None:
        _find_near_duplicates(connection, run)
    number = execute(connection, "SELECT count(*) FROM judged WHERE reason IS NULL")[0][0]
    pruned = int(Fraction(str(run.settings.prune_fraction)) * number)
    worst = "false"
    if least_quality is not None:
        worst = f"quality < {least_quality!r}::DOUBLE"
    elif pruned:
        # The best document that is pruned; all documents before it in this order are pruned too.
        execute(
            connection,
            "CREATE TABLE last AS SELECT quality, id FROM judged WHERE reason IS NULL "
            "ORDER BY quality, id LIMIT 1 OFFSET CAST(? AS BIGINT)",
            [pruned - 1],
        )
        worst = (
            "quality < (SELECT quality FROM last) OR (quality = (SELECT quality FROM last) "
            "AND id <= (SELECT id FROM last))"
        )
    execute(
        connection,
        "CREATE VIEW result AS SELECT *, CASE WHEN reason IS NOT NULL THEN reason "
        f"WHEN {worst} THEN 'pruned' END AS dropped FROM judged",
    )


def _load_contaminated(connection: Any, run: Run) -> None:
    """Create table `contaminated`: documents that share an n-gram with a benchmark."""
    execute(
        connection,
        "CREATE TABLE contaminated (shard INT, row BIGINT, contaminated_by VARCHAR, "
        "contaminated_at BIGINT, contaminated_ngram VARCHAR)",
    )
    for shard in range(run.num_shards) if run.settings.quality.contamination else ():
        run.receipt("screening", shard)
        execute(
            connection,
            "INSERT INTO contaminated SELECT CAST(? AS INT), row, contaminated_by, "
            "contaminated_at, contaminated_ngram FROM read_parquet(?) "
            "WHERE contaminated_by IS NOT NULL",
            [shard, str(run.path("screening", shard))],
        )


def _find_near_duplicates(connection: Any, run: Run) -> None:
    """Fill table `near` with the documents to drop from each cluster, and the id of the one kept.

    The document with the best quality is kept; among equals, the one with the smallest id. If the
    cluster contains a document of an earlier dataset, all of ours are dropped.
    """
    near = run.settings.quality.near_duplicates
    assert near is not None
    with tempfile.TemporaryFile(dir=run.root) as file:
        rows = []
        if near.against:
            run.receipt("earlier_signatures")
            signatures, is_there = read_signatures(run.path("earlier_signatures"))
            file.write(signatures[is_there].tobytes())
            rows.append(np.flatnonzero(is_there))
        earlier = len(rows[0]) if rows else 0
        for shard in range(run.num_shards):
            run.receipt("screening", shard)
            signatures, is_there = read_signatures(run.path("screening", shard))
            found = connection.execute(
                "SELECT row FROM judged WHERE shard = ? AND reason IS NULL ORDER BY row", [shard]
            ).fetchnumpy()["row"]
            rows.append(np.asarray(found[is_there[found]], np.int64))
            file.write(signatures[rows[-1]].tobytes())
        file.flush()
        total = sum(map(len, rows))
        if not total:
            return
        gathered = np.memmap(file, np.dtype("<u2"), "r", shape=(total, NUMBERS))
        labels = cluster(gathered, near.similarity, earlier)
    members = np.flatnonzero(np.bincount(labels)[labels] > 1)
    is_earlier = members < earlier
    parts = np.repeat(np.arange(len(rows)), [len(part) for part in rows])[members]
    places = np.concatenate(rows)[members]
    names = pa.nulls(len(members), pa.string())
    if is_earlier.any():
        ids = read_columns(run.path("earlier_signatures"), ["id"])["id"].combine_chunks()
        names = ids.take(pa.array(places, mask=~is_earlier))
    table = pa.table(
        {
            "cluster": labels[members],
            "shard": pa.array(parts - (1 if near.against else 0), pa.int32(), mask=is_earlier),
            "row": places,
            "earlier": names,
        }
    )
    connection.register("clustered", table)
    execute(
        connection,
        "INSERT INTO near SELECT shard, row, kept FROM (SELECT c.shard, c.row, "
        "first_value(coalesce('earlier:' || c.earlier, s.id)) OVER best AS kept, "
        "row_number() OVER best AS place FROM clustered c "
        "LEFT JOIN scored s ON c.shard = s.shard AND c.row = s.row WINDOW best AS (PARTITION BY "
        "c.cluster ORDER BY c.earlier IS NULL, c.earlier, s.quality DESC, s.id)) "
        "WHERE place > 1 AND shard IS NOT NULL",
    )
    connection.unregister("clustered")
