"""Reading published files back through hf:// paths at one commit, before the tag is set.

The Hub's listing does not prove that the files can be read. The end of every file is fetched, which
holds the footer of a Parquet file and costs one or two requests, and one file is read completely.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from huggingface_hub import HfFileSystem

from datamask.errors import PublicationError
from datamask.publishing.folder import LocalFile

AT_ONCE = 8

END_BYTES = 64 * 1024
"""Bytes that are compared at the end of each file: most footers, and the last pages."""


def read_back(api: Any, repository: str, commit: str, files: list[LocalFile]) -> None:
    """Compare the end of all files, and the whole of the smallest Parquet file, with those sent.

    Raises:
        PublicationError: the Hub serves other content, or a file is missing.
    """
    revision = f"datasets/{repository}@{commit}"
    filesystem = HfFileSystem(endpoint=api.endpoint, token=api.token, skip_instance_cache=True)
    filesystem.find(revision)  # one listing instead of a request per file
    parquet = (file for file in files if file.path.endswith(".parquet"))
    smallest = min(parquet, key=lambda file: (file.size, file.path))

    def compare(file: LocalFile) -> None:
        start = 0 if file == smallest else max(0, file.size - END_BYTES)
        path = f"{revision}/{file.path}"
        try:
            # Without a cache nothing else is fetched.
            with filesystem.open(path, cache_type="none") as remote, file.source.open("rb") as sent:
                remote.seek(start)
                sent.seek(start)
                is_same = remote.read() == sent.read()
        except FileNotFoundError:
            is_same = False
        if not is_same:
            raise PublicationError(
                f"hf://{path}: is not served as it was sent; the tag was not set; publish again"
            )

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(compare, files))
