"""What the footers of the source's files say.

A Parquet footer gives the rows and bytes of each row group. Together with the file's size it
identifies the content: it holds the place and size of every column chunk, and usually statistics.
So a corpus of any size is examined in seconds and recognised later.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from datamask.errors import DatamaskError
from datamask.source.opening import is_remote
from datamask.source.pinned import open_parquet
from datamask.source.reading import plain_schema


@dataclass(frozen=True, slots=True)
class SourceFile:
    """What a Parquet footer says: `digest` is of size and footer, `size` in bytes.

    `groups` are rows and uncompressed bytes of each row group.
    """

    path: str
    size: int
    digest: str
    groups: tuple[tuple[int, int], ...]
    schema: pa.Schema


def read_footers(paths: Sequence[str]) -> tuple[list[SourceFile], list[DatamaskError]]:
    """The readable ones of some Parquet files, in order, and the problems of the others."""

    def read(path: str) -> SourceFile | DatamaskError:
        try:
            with open_parquet(path) as file:
                groups = (file.metadata.row_group(i) for i in range(file.num_row_groups))
                counts = tuple((group.num_rows, group.total_byte_size) for group in groups)
                schema = plain_schema(file.schema_arrow)
                return SourceFile(path, file.size, file.digest, counts, schema)
        except DatamaskError as error:
            return error

    with ThreadPoolExecutor(16 if any(map(is_remote, paths)) else 2) as pool:
        results = list(pool.map(read, paths))
    return (
        [result for result in results if isinstance(result, SourceFile)],
        [result for result in results if isinstance(result, DatamaskError)],
    )
