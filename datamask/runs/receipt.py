"""What a file of a run says of itself: which stage made it, from what, and what it measured."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from datamask.config.canonical import canonical_json
from datamask.errors import CorruptFileError
from datamask.storage.duckdb_scratch import read_only_duckdb

RECEIPT_KEY = b"datamask"
HTML_OPEN, HTML_CLOSE = "<!-- datamask ", " -->"


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a file says of itself. Nothing in it depends on time or place: equal work, equal bytes.

    Args:
        stage: name of the stage that made it.
        unit: number of the shard or file within the stage; 0 where there is one.
        fingerprint: hash of everything that determines the content.
        rows: rows in the file (documents, where it holds documents).
        metrics: what the stage measured, as plain JSON.
    """

    stage: str
    unit: int
    fingerprint: str
    rows: int
    metrics: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """The receipt as one line of canonical JSON."""
        parts = (self.stage, self.unit, self.fingerprint, self.rows, self.metrics)
        names = ("stage", "unit", "fingerprint", "rows", "metrics")
        return canonical_json(dict(zip(names, parts, strict=True)))


def read_receipt(path: Path | IO[bytes]) -> Receipt:
    """Read the receipt of a Parquet, JSON, HTML or DuckDB file, or of an open Parquet file.

    Raises:
        FileNotFoundError: there is no such file.
        CorruptFileError: it is unreadable or carries no receipt.
    """
    if isinstance(path, Path) and not path.is_file():
        raise FileNotFoundError(path)
    try:
        return Receipt(**json.loads(_receipt_text(path)))
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise CorruptFileError(f"{path}: unreadable ({' '.join(str(error).split())})") from None


def fingerprint_in(source: Path | IO[bytes]) -> str:
    """The fingerprint in a file, or in a Parquet file that is open; raises as `read_receipt`."""
    return read_receipt(source).fingerprint


def _receipt_text(path: Path | IO[bytes]) -> str:
    if not isinstance(path, Path) or path.suffix == ".parquet":
        return str((pq.read_metadata(path).metadata or {})[RECEIPT_KEY], "utf-8")
    if path.suffix == ".json":
        return json.dumps(json.loads(path.read_text(encoding="utf-8"))["receipt"])
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
