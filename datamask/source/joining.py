"""Give DuckDB the ids of all documents, so that files of other data can be joined by id.

Ids are compared by their MD5, 128 bits: the probability that any two of 10⁹ ids have the same is
10⁻²¹.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa

from datamask.runs.in_progress import advance
from datamask.runs.run import Run
from datamask.source.reading import read_ids
from datamask.storage.duckdb_scratch import execute_with


def digest_of_ids(ids: pa.ChunkedArray) -> str:
    """Return a digest of ids and their order; 32 hexadecimal digits."""
    names = ids.cast(pa.binary()).fill_null(b"").to_pylist()
    return hashlib.sha256(b"\0".join(names)).hexdigest()[:32]


def load_ids(connection: Any, run: Run, shards: list[int]) -> dict[int, str]:
    """Make table `ids`: key, shard, row. Return a digest of each shard's ids."""
    connection.execute("CREATE TABLE ids (key UHUGEINT, shard INTEGER, row BIGINT)")
    query = "INSERT INTO ids SELECT md5_number(id), CAST(? AS INTEGER), row FROM arriving"
    digests, done, total = {}, 0, sum(map(run.shard_rows, shards))
    for shard in shards:
        ids = read_ids(run, shard)
        digests[shard] = digest_of_ids(ids)
        execute_with(connection, pa.table({"id": ids, "row": np.arange(len(ids))}), query, shard)
        done += len(ids)
        advance(done, total)
    return digests
