"""Read the beginnings of some documents, without reading the whole source.

Only row groups with a wanted row are read, up to `MOST_TEXT_BYTES`; other documents are shown
without text. This keeps the report of a remote corpus cheap.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datamask.errors import one_line
from datamask.runs.run import Run
from datamask.source.completed import batches_of
from datamask.source.long_texts import chunks_of
from datamask.source.opening import open_parquet
from datamask.source.reading import cast_plain, groups_with

logger = logging.getLogger(__name__)

MOST_CHARACTERS = 1000
"""Number of characters of a document that are shown."""

MOST_TEXT_BYTES = 2 * 2**30
"""Maximum bytes of text that are read for examples and map."""


def with_beginnings(run: Run, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add `beginning` to rows, the start of each document's text; None if it was not read."""
    texts = beginnings(run, [(row["shard"], row["row"]) for row in rows])
    return [row | {"beginning": texts.get((row["shard"], row["row"]))} for row in rows]


def beginnings(run: Run, wanted: Sequence[tuple[int, int]]) -> dict[tuple[int, int], str]:
    """Return the first `MOST_CHARACTERS` of documents, by shard and row, blank lines left out.

    *wanted* are shards and rows within them, the most wanted first. Documents whose text was not
    read are absent; in layout `features`, which has no text, all are.
    """
    if run.settings.source.layout == "features":
        return {}
    column = run.settings.source.columns.text
    text_at: dict[tuple[int, int], str] = {}
    spent, unread = 0, 0
    for shard in dict.fromkeys(shard for shard, _ in wanted):
        rows = np.array(sorted({row for other, row in wanted if other == shard}), dtype=np.int64)
        start = 0
        for piece in run.shard_pieces[shard]:
            inside = rows[(rows >= start) & (rows < start + piece.rows)] - start
            if len(inside):
                with open_parquet(piece.path, shard, piece.digest) as file:
                    for group, first, held in groups_with(file, piece, inside):
                        chunks = chunks_of(file.metadata.row_group(group), [column])
                        size = sum(chunk.total_uncompressed_size for chunk in chunks)
                        if spent + size > MOST_TEXT_BYTES:
                            unread += len(held)
                            continue
                        spent += size
                        batches = batches_of(file, [column], run.settings.source, [group])
                        texts = pa.chunked_array([batch.column(0) for batch in batches])
                        taken = cast_plain(texts, pa.large_string()).take(pa.array(held - first))
                        lines = _beginnings(taken)
                        keys = ((shard, start + int(row)) for row in held)
                        text_at |= dict(zip(keys, lines, strict=True))
            start += piece.rows
    if unread:
        logger.info("%d documents are shown without text (above %d bytes)", unread, MOST_TEXT_BYTES)
    return text_at


def _beginnings(texts: pa.ChunkedArray) -> Iterator[str]:
    # White space shrinks, so the cut keeps more than is shown.
    for text in pc.utf8_slice_codeunits(texts, 0, 4 * MOST_CHARACTERS).to_pylist():
        line = "\n".join(filter(None, map(one_line, (text or "").splitlines())))
        is_whole = len(line) <= MOST_CHARACTERS
        yield line if is_whole else line[: MOST_CHARACTERS - 1].rstrip() + "…"
