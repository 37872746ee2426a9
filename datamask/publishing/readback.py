"""Reading published files back through hf:// paths at one commit.

The Hub's listing does not prove that the files can be read. The footer of every file is fetched and
its rows counted, which costs one or two requests per file, and one file is read completely.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from datamask.errors import PublicationError, one_line
from datamask.publishing.folder import LocalFile
from datamask.source.reading import BATCH_ROWS

AT_ONCE = 8


def read_back(api: Any, repository: str, commit: str, files: Iterable[LocalFile]) -> None:
    """Compare rows of all Parquet files, and the values of the smallest one, with those sent.

    Raises:
        PublicationError: the Hub serves other content, or a file is missing or unreadable.
    """
    from huggingface_hub import HfFileSystem

    place = f"datasets/{repository}@{commit}"
    filesystem = HfFileSystem(endpoint=api.endpoint, token=api.token, skip_instance_cache=True)
    filesystem.find(place)  # one listing instead of a request per file
    parquet = [file for file in files if file.path.endswith(".parquet")]

    def compare(file: LocalFile) -> None:
        sent = pq.read_metadata(file.source).num_rows
        # Without a cache only the footer is fetched, kilobytes of half a gigabyte.
        with _opened(filesystem, place, file, cache_type="none") as remote:
            served = pq.read_metadata(remote).num_rows
        if served != sent:
            raise _differs(place, file, f"has {served} rows, {sent} were sent")

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(compare, parquet))
    smallest = min(parquet, key=lambda file: (file.size, file.path))
    with _opened(filesystem, place, smallest) as remote:
        served = checksum(remote)
    if served != checksum(smallest.source):
        raise _differs(place, smallest, "has other values than were sent")


@contextlib.contextmanager
def _opened(filesystem: Any, place: str, file: LocalFile, **options: str) -> Iterator[IO[bytes]]:
    try:
        with filesystem.open(f"{place}/{file.path}", **options) as remote:
            yield remote
    except FileNotFoundError:
        raise _differs(place, file, "is missing") from None
    except pa.ArrowException as error:
        raise _differs(place, file, f"cannot be read ({one_line(error)})") from None


def _differs(place: str, file: LocalFile, how: str) -> PublicationError:
    return PublicationError(f"hf://{place}/{file.path}: {how}; the tag was not set; publish again")


def checksum(file: Path | IO[bytes]) -> str:
    """SHA-256 of a Parquet file's columns and values, independent of their encoding."""
    found = hashlib.sha256()
    # Buffered ahead, a remote file takes few requests, but a local one would be wholly in memory.
    with pq.ParquetFile(file, pre_buffer=not isinstance(file, Path)) as opened:
        found.update(opened.schema_arrow.remove_metadata().serialize())
        for batch in opened.iter_batches(BATCH_ROWS):
            found.update(pa.RecordBatch.from_arrays(batch.columns, batch.schema.names).serialize())
    return found.hexdigest()
