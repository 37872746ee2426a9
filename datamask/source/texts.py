"""The beginnings of some documents, read from the source without reading all of it.

Only the row groups that hold a wanted row are read, and no more of them than
`report.text_bytes` allows; documents beyond it are shown without text. That keeps the report of a
remote corpus cheap.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from datamask.runs.run import Piece, Run
from datamask.source.opening import open_parquet

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Group:
    """A row group of a file: wanted rows as (row in the group, row in the shard)."""

    index: int
    bytes: int
    rows: tuple[tuple[int, int], ...]


def with_beginnings(run: Run, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with `beginning`, the start of each document's text; None if it was not read."""
    texts = beginnings(run, [(row["shard"], row["row"]) for row in rows])
    return [row | {"beginning": texts.get((row["shard"], row["row"]))} for row in rows]


def beginnings(run: Run, wanted: Sequence[tuple[int, int]]) -> dict[tuple[int, int], str]:
    """The first `report.text_characters` characters of some documents, on one line.

    Args:
        run: a planned run.
        wanted: shard and row within it, the most wanted first.

    Returns:
        Text by shard and row; documents whose text was not read are missing. Empty for layout
        `features`, which has no text.

    Raises:
        InputError: a file of the source is gone or unreadable.
    """
    if run.settings.source.layout == "features":
        return {}
    settings = run.settings.report
    found: dict[tuple[int, int], str] = {}
    spent, unread = 0, 0
    for shard in dict.fromkeys(shard for shard, _ in wanted):
        rows = np.array(sorted({row for other, row in wanted if other == shard}), dtype=np.int64)
        start = 0
        for piece in run.shard_pieces[shard]:
            inside = rows[(rows >= start) & (rows < start + piece.rows)] - start
            if len(inside):
                with open_parquet(piece.path, shard) as file:
                    for group in _groups(file, piece, inside, run.settings.source.columns.text):
                        if spent + group.bytes > settings.text_bytes:
                            unread += len(group.rows)
                            continue
                        spent += group.bytes
                        texts = _read(file, group, run, settings.text_characters)
                        found |= {
                            (shard, start + row): text
                            for (_, row), text in zip(group.rows, texts, strict=True)
                        }
            start += piece.rows
    if unread:
        logger.info("report: %d documents shown without text (report.text_bytes)", unread)
    return found


def _groups(file: pq.ParquetFile, piece: Piece, rows: np.ndarray, column: str) -> Iterator[_Group]:
    """The row groups of a piece that hold some of its rows (ascending, from the piece's start)."""
    start = -piece.skip_rows
    place = next(
        index
        for index in range(file.metadata.num_columns)
        if file.metadata.schema.column(index).path == column
    )
    for index in range(piece.first_row_group, piece.first_row_group + piece.num_row_groups):
        group = file.metadata.row_group(index)
        inside = rows[(rows >= start) & (rows < start + group.num_rows)]
        if len(inside):
            pairs = tuple((int(row) - start, int(row)) for row in inside)
            yield _Group(index, group.column(place).total_uncompressed_size, pairs)
        start += group.num_rows


def _read(file: pq.ParquetFile, group: _Group, run: Run, length: int) -> list[str]:
    column = run.settings.source.columns.text
    texts = file.read_row_group(group.index, columns=[column])[column].cast(pa.large_string())
    taken = texts.take(pa.array([row for row, _ in group.rows]))
    # Whitespace shrinks when put on one line: a little more than is shown is looked at.
    cut = pc.utf8_slice_codeunits(taken, 0, 4 * length)
    return [_shortened(text or "", length) for text in cut.to_pylist()]


def _shortened(text: str, length: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1].rstrip() + "…"
