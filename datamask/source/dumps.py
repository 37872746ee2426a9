"""Documents of each shard by dump (crawl, collection).

Planning counts them while it checks the rows, so that the subset's files, one set per dump, are
known before any document is selected. A dump's name becomes the name of a folder and of a
configuration on the Hub; unsuitable names are counted together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datamask.runs.run import OTHER_DUMPS, Piece

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


Counted = list[tuple[int, str, int]]
"""Shard, dump and number of documents, in order of first occurrence."""


class DumpCounts:
    """Documents of each shard by dump, counted while the rows of a plan's files are read.

    Files are numbered in the order of the plan. `by_shard` has the dumps of each shard in order of
    first occurrence, and no shards if the dumps are not UTF-8, or too many.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.by_shard: list[Counter[str]] = [Counter() for _ in {piece.shard for piece in pieces}]
        self._names: set[str] = set()
        # The rows of all files, in the order of the plan, are those of its pieces.
        self._shards = np.array([piece.shard for piece in pieces])
        self._ends = np.cumsum([piece.rows for piece in pieces])
        first: dict[str, int] = {}
        for piece, end in zip(pieces, self._ends.tolist(), strict=True):
            first.setdefault(piece.path, end - piece.rows)
        self._first = np.array([*first.values()])

    def count(self, file: np.ndarray, row: np.ndarray, dumps: pa.ChunkedArray) -> Counted | None:
        """Count some rows, given by the number of their file and in it; None: not UTF-8.

        Any thread may call this method.
        """
        pieces = np.searchsorted(self._ends, self._first[file] + row, side="right")
        rows = {"shard": self._shards[pieces], "row": np.arange(len(row))}
        try:
            table = pa.table({**rows, "dump": dumps.cast(pa.string())})
            groups = table.group_by(["shard", "dump"], use_threads=False)
            counts = groups.aggregate([("row", "min"), ("row", "count")]).sort_by("row_min")
            names = dump_names(counts["dump"].combine_chunks())
        except pa.ArrowInvalid:
            return None  # stage `scores` names the row
        columns = (counts["shard"], names, counts["row_count"])
        return [*zip(*(column.to_pylist() for column in columns), strict=True)]

    def add(self, counted: Counted | None) -> None:
        """Add what `count` returned, in the order of the rows."""
        if not self.by_shard:
            return
        for shard, name, number in counted or ():
            self.by_shard[shard][name] += number
            self._names.add(name)
        if counted is None or len(self._names) > MOST_COUNTED:
            self.by_shard = []
