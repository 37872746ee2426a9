"""What the footers of the source's files say.

A Parquet footer gives the rows and bytes of each row group. Together with the file's size it
identifies the content: it holds the place and size of every column chunk, and usually statistics.
So a corpus of any size is examined in seconds and recognised later.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from datamask.errors import DatamaskError
from datamask.source.opening import (
    footer_length,
    is_remote,
    list_files,
    naming,
    open_binary,
    open_parquet,
)
from datamask.source.reading import plain_schema

SCORE_SUFFIXES = (".parquet", ".csv", ".jsonl", ".ndjson")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """What a Parquet footer says about a file.

    Args:
        path: absolute, or a URL.
        size: bytes of the file.
        digest: see `digest_file`.
        groups: rows and uncompressed bytes of each row group.
        schema: its columns.
    """

    path: str
    size: int
    digest: str
    groups: tuple[tuple[int, int], ...]
    schema: pa.Schema


def read_footers(path: str, how: str) -> tuple[list[SourceFile], list[DatamaskError]]:
    """The readable Parquet files at *path*, sorted by path, and the problems of the others.

    Args:
        path: folder, glob, file or URL.
        how: see `digest_file`.

    Raises:
        InputError: there are no files.
    """

    def read(path: str) -> SourceFile | DatamaskError:
        try:
            digest, size = digest_file(path, how)
            with open_parquet(path) as file:
                groups = (file.metadata.row_group(i) for i in range(file.num_row_groups))
                counts = tuple((group.num_rows, group.total_byte_size) for group in groups)
                return SourceFile(path, size, digest, counts, plain_schema(file.schema_arrow))
        except DatamaskError as error:
            return error

    with ThreadPoolExecutor(16 if is_remote(path) else 2) as pool:
        found = list(pool.map(read, list_files(path)))
    return (
        [one for one in found if isinstance(one, SourceFile)],
        [one for one in found if isinstance(one, DatamaskError)],
    )


def digest_file(path: str, how: str) -> tuple[str, int]:
    """What identifies a file, and its size in bytes.

    Args:
        path: local or URL.
        how: `content` hashes every byte; `footer` a Parquet file's size and footer.

    Raises:
        InputError: there is no such file, or it is not a Parquet file (`footer`).
    """
    with naming(path), open_binary(path) as file:
        if how == "content":
            whole = hashlib.sha256()
            while block := file.read(2**20):
                whole.update(block)
            return whole.hexdigest()[:32], file.tell()
        size = file.seek(0, 2)
        length = footer_length(file, path)
        file.seek(size - 8 - length)
        return hashlib.sha256(f"{size}/".encode() + file.read(length)).hexdigest()[:32], size


def digest_files(path: str, how: str, suffixes: tuple[str, ...] = SCORE_SUFFIXES) -> str:
    """One digest for all such files at *path*; files other than Parquet by their content."""
    whole = hashlib.sha256()
    for name in list_files(path, suffixes):
        digest, _ = digest_file(name, how if name.lower().endswith(".parquet") else "content")
        whole.update(f"{name}\0{digest}\n".encode())
    return whole.hexdigest()[:32]
