"""Trace a converted copy back to the file that a person edits, for messages.

The copies of a source's JSON lines, CSV and Arrow files are in the folder `converted/` of a run, or
of a folder of the user's (`datamask ingest`). Its note names the original files.
"""

from __future__ import annotations

import csv
import glob
import hashlib
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from datamask.errors import DatamaskError, InputError
from datamask.runs.opening import run_storage
from datamask.source.opening import open_binary, resolve_path
from datamask.storage.local import Storage, check_no_folder

FOLDER = "converted"
NOTE = f"{FOLDER}/files.json"
PARQUET = ".parquet"

LONGEST_NAME = 180
"""Maximum characters of a copy's name; file systems allow 255 bytes."""

JSON_LINES, TABLES, ARROW = (".jsonl", ".ndjson", ".json"), (".csv", ".tsv"), (".arrow", ".feather")
LANCE = ".lance"
"""End of the name of a Lance dataset, a folder."""


def base_of(path: str) -> str:
    """Return the part of a source's path before its first wildcard; for a file, its folder."""
    parts = resolve_path(path).rstrip("/").split("/")
    fixed = next((n for n, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    if parts[-1].lower().endswith((PARQUET, *JSON_LINES, *TABLES, *ARROW, LANCE, ".gz", ".zst")):
        fixed = min(fixed, len(parts) - 1)
    return "/".join(parts[:fixed]) + "/"


@dataclass(frozen=True, slots=True)
class Note:
    """Content of `converted/files.json`.

    `base`: the folder or URL of the source; `files`: by name within it, the version of the file or
    Lance dataset, and a digest of its content; `bad_lines`: how many lines are left out;
    `lone_surrogates`: how many are U+FFFD in the copy; `schema`: the schema of the copies (Arrow
    IPC, hexadecimal); `made_ids`: the column whose ids are made, if any.
    """

    base: str = ""
    files: dict[str, list[str]] = field(default_factory=dict)
    bad_lines: dict[str, int] = field(default_factory=dict)
    schema: str = ""
    made_ids: str = ""
    lone_surrogates: dict[str, int] = field(default_factory=dict)

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of the copies."""
        return pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(self.schema)))


def read_note(storage: Storage) -> Note:
    """Read the note of a run or folder; an empty one if nothing is converted there."""
    path = storage.fetch(NOTE)
    check_no_folder(path)
    return Note(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else Note()


def copy_name(file: str) -> str:
    """Return the name of a file's copy, shortened to a length that file systems accept."""
    name = quote(file, safe="")
    if len(name) > LONGEST_NAME:
        name = f"{hashlib.md5(file.encode()).hexdigest()}-{name[-LONGEST_NAME // 2 :]}"
    return f"{name}{PARQUET}"


def original(path: str) -> str:
    """Return the file whose copy is at *path*; *path* itself if it is not a copy."""
    home, is_copy, name = path.rpartition(f"/{FOLDER}/")
    if not is_copy or "/" in name:
        return path
    note = read_note(run_storage(home))
    return next((note.base + file for file in note.files if copy_name(file) == name), path)


def at_original(error: DatamaskError) -> DatamaskError:
    """Turn an error about a copy's content into one about its file, with the line there."""
    if not isinstance(error, InputError) or error.path is None or error.column is None:
        return error
    path = str(error.path)
    if (file := original(path)) == path:
        return error
    place: dict[str, Any] = {"row": error.row}
    if error.row is not None and not file.lower().endswith((*ARROW, LANCE)):
        place = {"line": _line(file, error.row)}
    return InputError(error.problem, path=file, shard=error.shard, column=error.column, **place)


def _line(path: str, row: int) -> int | None:
    """Return the line of a row of JSON or CSV, from 0; a row of several lines is at its last."""
    compression = {".gz": "gzip", ".zst": "zstd"}.get(path[path.rfind(".") :].lower())
    with open_binary(path) as raw, pa.input_stream(raw, compression=compression) as file:
        lines = io.BufferedReader(file)
        is_table = any(kind in path.lower() for kind in TABLES)
        places = _table_lines(lines, path) if is_table else _json_lines(lines)
        return next((line for number, line in enumerate(places) if number == row), None)


def _json_lines(file: io.BufferedReader[Any]) -> Iterator[int]:
    for number, line in enumerate(file, 1):
        if line.strip().startswith(b"{"):
            yield number


def _table_lines(file: io.BufferedReader[Any], path: str) -> Iterator[int]:
    with io.TextIOWrapper(file, "utf-8-sig", errors="replace", newline="") as text:
        rows = csv.reader(text, delimiter="\t" if ".tsv" in path.lower() else ",")
        yield from (rows.line_num for number, row in enumerate(filter(None, rows)) if number)
