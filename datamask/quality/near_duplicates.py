"""Stage `near_duplicates`: clusters of similar documents over all shards, and the best of each.

It runs on one machine. The signatures of all documents that are left are gathered in an unnamed
temporary file. Only documents that are left are compared, so none is dropped in favour of one that
is itself dropped.
"""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datamask.config.compute import Compute
from datamask.hygiene.minhash import NUMBERS, cluster, read_signatures
from datamask.runs import schemas
from datamask.runs.files import read_columns
from datamask.runs.output import write_output
from datamask.runs.receipt import Receipt
from datamask.runs.run import Run

EARLIER = -1
"""In place of a shard, for documents of earlier datasets."""


def find_near_duplicates(run: Run, compute: Compute) -> Receipt:
    """Write `near_duplicates.parquet`: which documents are dropped, in the order of the source.

    The document with the best quality is kept; among equals, the one with the smallest id. If the
    cluster contains a document of an earlier dataset, all of ours are dropped.

    Raises:
        RunError: what it reads is missing or stale.
    """
    found = _members(run)
    order = np.lexsort(
        (
            pc.rank(found["id"], tiebreaker="dense").to_numpy(),
            np.where(found["shard"] == EARLIER, 0.0, -found["quality"]),
            found["shard"] != EARLIER,
            found["cluster"],
        )
    )
    is_first = np.diff(found["cluster"][order], prepend=-1) != 0
    kept = order[is_first][np.cumsum(is_first) - 1]
    is_dropped = ~is_first & (found["shard"][order] != EARLIER)
    dropped, kept = order[is_dropped], kept[is_dropped]
    names = found["id"].take(pa.array(kept))
    prefix = np.where(found["shard"][kept] == EARLIER, "earlier:", "")
    table = pa.table(
        {
            "shard": pa.array(found["shard"][dropped], pa.int32()),
            "row": found["row"][dropped],
            "near_duplicate_of": pc.binary_join_element_wise(pa.array(prefix), names, ""),
        },
        schema=schemas.NEAR_DUPLICATES,
    ).sort_by([("shard", "ascending"), ("row", "ascending")])
    return write_output(run, "near_duplicates", 0, table.schema, [table], {})


def _members(run: Run) -> dict[str, Any]:
    """Documents that are not alone in their cluster: `cluster`, `shard`, `row`, `quality`, `id`."""
    near = run.settings.quality.near_duplicates
    assert near is not None
    shards, taken = [], []
    with tempfile.TemporaryFile(dir=run.root) as file:
        if near.against:
            run.receipt("earlier_signatures")
            signatures, is_there = read_signatures(run.path("earlier_signatures"))
            file.write(signatures[is_there].tobytes())
            shards, taken = [EARLIER], [is_there]
        earlier = sum(map(np.count_nonzero, taken))
        for shard in range(run.num_shards):
            run.receipt("screening", shard)
            run.receipt("combined", shard)
            signatures, is_there = read_signatures(run.path("screening", shard))
            reasons = read_columns(run.path("combined", shard), ["reason"])["reason"]
            shards.append(shard)
            taken.append(reasons.is_null().to_numpy() & is_there)
            file.write(signatures[taken[-1]].tobytes())
        file.flush()
        ends = np.cumsum([np.count_nonzero(rows) for rows in taken])
        gathered = np.zeros((0, NUMBERS), np.uint16)
        if ends[-1]:
            gathered = np.memmap(file, np.dtype("<u2"), "r", shape=(int(ends[-1]), NUMBERS))
        labels = cluster(gathered, near.similarity, earlier)
    is_member = labels != np.arange(len(labels), dtype=labels.dtype)
    is_member[labels[is_member]] = True
    sizes, rows, quality, names = [], [], [], [pa.array([], pa.string())]
    for shard, is_taken, here in zip(shards, taken, np.split(is_member, ends[:-1]), strict=True):
        rows.append(np.flatnonzero(is_taken)[here])
        sizes.append(len(rows[-1]))
        places = pa.array(rows[-1])
        if shard == EARLIER:
            table = read_columns(run.path("earlier_signatures"), ["id"]).take(places)
            quality.append(np.zeros(len(places)))
        elif len(places):
            table = read_columns(run.path("scores", shard), ["id"]).take(places)
            column = read_columns(run.path("combined", shard), ["quality"]).take(places)
            quality.append(column["quality"].to_numpy())
        else:
            continue
        names.append(table["id"].combine_chunks())
    return {
        "cluster": labels[is_member].astype(np.int64),
        "shard": np.repeat(shards, sizes),
        "row": np.concatenate(rows),
        "quality": np.concatenate([*quality, []]),
        "id": pa.concat_arrays(names),
    }
