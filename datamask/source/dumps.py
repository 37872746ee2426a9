"""Documents of each shard by dump (crawl, collection).

Planning counts them once, from that one column, so that the subset's files, one set per dump, are
known before any document is selected. A dump's name becomes the name of a folder and of a
configuration on the Hub; unsuitable names are counted together.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from datamask.runs.run import OTHER_DUMPS, Piece
from datamask.source.reading import read_piece

MOST_COUNTED = 1000
"""If there are more dumps than this, none is counted: they would not be published separately."""

RESERVED = ("default", "sample", "scores")
_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,95}$"


def dump_names(values: pa.Array) -> pa.Array:
    """Dumps as names of folders: unchanged, or `other` (null, reserved or unsafe names)."""
    texts = values.cast(pa.string())
    reserved = pc.is_in(texts, value_set=pa.array(RESERVED))
    good = pc.and_not(pc.match_substring_regex(texts, _NAME), reserved)
    return pc.if_else(pc.fill_null(good, False), texts, OTHER_DUMPS)


def count_dumps(pieces: Iterable[Piece], column: str, schema: pa.Schema) -> list[dict[str, int]]:
    """Documents of each shard by dump, in order of first occurrence.

    Empty if *schema*, the source's, has no such column, or if there are too many dumps.
    """
    if column not in schema.names:
        return []
    shards: defaultdict[int, Counter[str]] = defaultdict(Counter)
    names: set[str] = set()
    for piece in pieces:
        counts = shards[piece.shard]
        for batch in read_piece(piece, [column]):
            try:
                by_name = pc.value_counts(dump_names(batch.column(0))).to_pylist()
            except pa.ArrowInvalid:
                return []  # not UTF-8; stage `scores` names the row
            counts.update({row["values"]: row["counts"] for row in by_name})
        names.update(counts)
        if len(names) > MOST_COUNTED:
            return []
    return [dict(counts) for counts in shards.values()]
