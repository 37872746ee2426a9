"""Rows of several files that are checked together, because calls for small files take long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from datamask.storage.duckdb_scratch import ROWS_AT_ONCE


@dataclass(frozen=True, slots=True)
class Read:
    """Rows as they were read, and the number of the file and of the row of each."""

    table: pa.Table
    file: np.ndarray
    row: np.ndarray

    @classmethod
    def joined(cls, reads: Sequence[Read]) -> Read:
        """All rows of *reads*, in their order."""
        table = pa.concat_tables([read.table for read in reads])
        file, row = ([getattr(read, name) for read in reads] for name in ("file", "row"))
        return cls(table, np.concatenate(file), np.concatenate(row))

    def where(self, mask: np.ndarray) -> Read:
        """Those of the rows that a mask has."""
        return Read(self.table.filter(mask), self.file[mask], self.row[mask])


def joined(reads: Iterator[Read]) -> Iterator[Read]:
    """The same rows, of several files at once: a call for each small file takes most of the time.

    Columns have the same types in all files of a table.
    """
    waiting: list[Read] = []
    count = 0
    for read in reads:
        same = not waiting or waiting[0].table.schema == read.table.schema
        if not same or count >= ROWS_AT_ONCE:
            yield Read.joined(waiting)
            waiting, count = [], 0
        waiting.append(read)
        count += len(read.row)
    if waiting:
        yield Read.joined(waiting)
