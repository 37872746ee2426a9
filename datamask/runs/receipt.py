"""The receipt in each file of a run: the stage that made it, its inputs, and what was measured."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from operator import methodcaller
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from datamask.errors import CorruptFileError, is_transient, one_line
from datamask.storage.contents import parse_json
from datamask.storage.duckdb_scratch import read_only_duckdb

RECEIPT_KEY = b"datamask"
HTML_OPEN, HTML_CLOSE = "<!-- datamask ", " -->"

_PLAIN = methodcaller("model_dump", mode="json")
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=_PLAIN)


def canonical_json(value: Any) -> str:
    """Return the only JSON text of a value: sorted keys, no spaces, settings as plain data."""
    return _CANONICAL.encode(value)


@dataclass(frozen=True, slots=True)
class Receipt:
    """A file's receipt. It depends on neither time nor machine, so equal work gives equal bytes.

    Args:
        stage: name of the stage that made the file.
        unit: number of the shard or file within the stage; 0 if there is only one.
        fingerprint: hash of everything that determines the content.
        rows: rows in the file (documents, if it holds documents).
        metrics: what the stage measured, as plain JSON.
    """

    stage: str
    unit: int
    fingerprint: str
    rows: int
    metrics: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """The receipt as one line of canonical JSON."""
        return canonical_json({name: getattr(self, name) for name in self.__slots__})


def read_receipt(path: Path | IO[bytes]) -> Receipt:
    """Read the receipt of a Parquet, JSON, HTML or DuckDB file, or of an open Parquet file.

    Raises:
        FileNotFoundError: the file does not exist.
        CorruptFileError: it is unreadable or carries no receipt.
    """
    if isinstance(path, Path) and not path.is_file():
        raise FileNotFoundError(path)
    try:
        return Receipt(**parse_json(_receipt_text(path)))
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        if isinstance(error, OSError) and is_transient(error):
            raise
        raise CorruptFileError(f"{path}: unreadable ({one_line(error)})") from None


def fingerprint_in(source: Path | str | IO[bytes]) -> str:
    """Read the fingerprint in a file or an open Parquet file. Errors are as in `read_receipt`."""
    return read_receipt(Path(source) if isinstance(source, str) else source).fingerprint


_IN_FOOTER = re.compile(rb'datamask\x18[\x80-\xff]{0,4}[\x00-\x7f]\{"fingerprint":"([0-9a-f]{32})"')
"""Find the receipt in a Parquet footer: key, type and length of the value, then canonical JSON."""


def fingerprint_at_end(source: Path | str | IO[bytes]) -> str:
    """Read the fingerprint from the last bytes of a Parquet file without decoding the footer.

    This takes a tenth of the time, and does not notice damage elsewhere in the footer.
    """
    match = None
    if isinstance(source, str) and source.endswith(".parquet"):
        file = os.open(source, os.O_RDONLY)
        try:
            size = os.lseek(file, 0, os.SEEK_END)
            tail = os.pread(file, 4096, max(0, size - 4096))
            length = 8 + int.from_bytes(tail[-8:-4], "little")
            if tail[-4:] == b"PAR1" and length < size:
                if length > len(tail):  # Most footers are shorter.
                    tail = os.pread(file, length, size - length)
                match = _IN_FOOTER.search(tail[-length:])
        except OSError:
            pass  # This is a folder or an unreadable file; `fingerprint_in` reports it.
        finally:
            os.close(file)
    return match[1].decode() if match else fingerprint_in(source)


def _receipt_text(path: Path | IO[bytes]) -> str:
    if not isinstance(path, Path) or path.suffix == ".parquet":
        # An open file takes half the time that Arrow needs for a path.
        file = pa.OSFile(str(path)) if isinstance(path, Path) else path
        return str((pq.read_metadata(file).metadata or {})[RECEIPT_KEY], "utf-8")
    if path.suffix == ".json":
        return json.dumps(parse_json(path.read_bytes())["receipt"])
    if path.suffix == ".html":
        with path.open(encoding="utf-8") as file:
            return file.readline().strip().removeprefix(HTML_OPEN).removesuffix(HTML_CLOSE)
    import duckdb

    try:
        with read_only_duckdb(path) as connection:
            row = connection.execute("SELECT receipt FROM receipt").fetchone()
    except duckdb.Error as error:
        raise ValueError(str(error)) from None
    return str(row[0]) if row else ""


def html_receipt(receipt: Receipt) -> str:
    """The first line of an HTML file with a receipt."""
    return HTML_OPEN + receipt.to_json().replace("-->", "--\\u003e") + HTML_CLOSE + "\n"
