"""JSON lines, CSV and Arrow files converted to Parquet, once, so that shards can be cut and read.

The copies, one per file, are in the folder `converted/` of a run, or of a folder of the user's
(`datamask ingest`). All have one schema, that of the files which were converted first. A note tells
which files they were, so that an interrupted conversion goes on, and a changed file is refused.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import hashlib
import io
import itertools
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa

from datamask.config.compute import Compute
from datamask.config.inputs import Source
from datamask.errors import InputError
from datamask.runs.files import replace_file, write_parquet
from datamask.runs.in_progress import each_in_turn
from datamask.source.formats import (
    ARROW,
    CONVERTED,
    Content,
    look_into,
    merge_schemas,
    read_records,
)
from datamask.source.opening import is_remote, list_files, open_binary, resolve_path
from datamask.storage.clients import file_system
from datamask.storage.protocol import Storage
from datamask.storage.temporary import temporary_folder
from datamask.storage.unchanged import content_digest

logger = logging.getLogger(__name__)

FOLDER = "converted"
NOTE = f"{FOLDER}/files.json"
PARQUET = ".parquet"

GROUP_BYTES = 64 * 2**20
"""Bytes of rows from which a row group of a copy is full."""


def source_files(path: str) -> tuple[list[str], list[str]]:
    """The Parquet files of a source, and those that must be converted, each sorted by path.

    Files that end with `.json` count only if there are no others: datasets have such files beside
    their data. A warning names the files of unknown formats.

    Raises:
        InputError: there are no files of a known format.
    """
    names = list_files(path, ("",))
    is_file = names[0].rpartition("/")[2] == path.rpartition("/")[2]
    if is_file and not names[0].lower().endswith(CONVERTED):
        return [*names], []
    parquet = [name for name in names if name.lower().endswith(PARQUET)]
    others = [name for name in names if name.lower().endswith(CONVERTED)]
    certain = [name for name in others if not name.lower().endswith(".json")]
    if parquet or certain:
        others = certain
    unread = sorted({*names} - {*parquet} - {*others})
    if not parquet and not others:
        known = ", ".join((PARQUET, *CONVERTED))
        raise InputError(f"no files of a known format ({known}) among {unread[:3]}", path=path)
    if unread:
        more = f" and {len(unread) - 3} more" if len(unread) > 3 else ""
        logger.warning("%s: not read: %s%s", path, ", ".join(unread[:3]), more)
    return parquet, others


def convert(
    names: Sequence[str],
    source: Source,
    storage: Storage,
    compute: Compute,
    *,
    may_write: bool = True,
) -> tuple[list[str], dict[str, str]]:
    """Convert files that are not converted yet, several at once.

    Args:
        names: the files, local or URLs.
        source: bounds bad lines; names the columns that are text, and the column of ids, which is
            made from text and position where no file has it.
        storage: gets the copies.
        compute: files converted at once (`workers`).
        may_write: otherwise files that are not converted are refused.

    Returns:
        The copies, in the order of *names*; and what was done to the rows, as pinned revisions.

    Raises:
        InputError: a file cannot be read, has too many bad lines, has changed since it was
            converted, or has a column of another type than the files before it.
    """
    note = _read_note(storage)
    base = _base(source.path)
    copies = {name: f"{FOLDER}/{quote(_relative(name, base), safe='')}{PARQUET}" for name in names}
    for name in names:
        if name in note.files:
            _check_unchanged(name, *note.files[name])
    new = [name for name in names if name not in note.files]
    made = {*storage.list(FOLDER, f"*{PARQUET}")}
    lacking = [name for name in names if name in new or copies[name] not in made]
    if lacking and not may_write:
        raise not_converted(source.path, len(lacking))
    if new:
        logger.info("%s: %d files to convert to Parquet", source.path, len(new))
        look = functools.partial(_look, source=source, storage=storage)
        looks = [*each_in_turn(look, new, compute.workers, "files looked into")]
        note = _extended(note, dict(zip(new, looks, strict=True)), source)
        with replace_file(storage.root / NOTE, storage) as temporary:
            temporary.write_text(json.dumps(asdict(note)), encoding="utf-8")

    def write(name: str) -> None:
        made_from = _relative(name, base) if note.made_ids else None
        with _local(name, storage) as path:
            batches = read_records(path, name, note.arrow_schema)
            groups = _row_groups(_with_ids(batches, made_from, source))
            target = storage.root / copies[name]
            write_parquet(target, note.arrow_schema, groups, storage=storage)

    for _ in each_in_turn(write, lacking, compute.workers, "files converted"):
        pass
    bad = sum(note.bad_lines.get(name, 0) for name in names)
    pins = {"scores:bad_lines": str(bad)} if bad else {}
    pins |= {"scores:made_ids": "text and position"} if note.made_ids else {}
    return [f"{resolve_path(storage.address)}/{copies[name]}" for name in names], pins


def not_converted(path: str, files: int) -> InputError:
    """The error about files that would have to be converted first."""
    return InputError(
        f"{files} files are not Parquet, and a launch converts them first; `datamask ingest {path} "
        "FOLDER` does it now, for any number of runs",
        path=path,
    )


@dataclass(frozen=True, slots=True)
class _Note:
    """What `converted/files.json` says.

    Args:
        files: of each file, what tells its version (see `_version`), and a digest of its content.
        bad_lines: how many lines of a file are left out, if there are some.
        schema: of the copies (Arrow IPC, in hexadecimal).
        made_ids: whether the ids are made.
    """

    files: dict[str, list[str]] = field(default_factory=dict)
    bad_lines: dict[str, int] = field(default_factory=dict)
    schema: str = ""
    made_ids: bool = False

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of the copies."""
        return pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(self.schema)))


def _read_note(storage: Storage) -> _Note:
    path = storage.fetch(NOTE)
    return _Note(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else _Note()


def _look(name: str, source: Source, storage: Storage) -> tuple[list[str], Content]:
    version = _version(name)
    with _local(name, storage) as path:
        content = look_into(path, name, source)
        return [version, content_digest(path)], content


def first_records(name: str, source: Source, rows: int, copy: Path) -> None:
    """Write the first records of a file to a Parquet file; all of an Arrow file."""
    ending = next(end for end in CONVERTED if name.lower().endswith(end))
    head = copy.with_name(f"head{ending.removesuffix('.gz').removesuffix('.zst')}")
    with open_binary(name) as raw, head.open("wb") as beginning:
        if ending in ARROW:
            shutil.copyfileobj(raw, beginning)
        else:
            compression = {".gz": "gzip", ".zst": "zstd"}.get(Path(ending).suffix)
            lines = io.BufferedReader(pa.input_stream(raw, compression=compression))
            beginning.writelines(itertools.islice(lines, rows + 1))
    content = look_into(str(head), name, source)
    write_parquet(copy, content.schema, read_records(str(head), name, content.schema))


def _check_unchanged(name: str, version: str, digest: str) -> None:
    """Refuse a file that has changed; a local one with the same content has not."""
    if _version(name) != version and (is_remote(name) or content_digest(name) != digest):
        problem = "has changed since it was converted; restore it, or use another folder"
        raise InputError(problem, path=name)


def _extended(note: _Note, looks: dict[str, tuple[list[str], Content]], source: Source) -> _Note:
    """The note with further files; those after the first keep to the schema of the first.

    Raises:
        InputError: a column of a further file is of another type.
    """
    files = note.files | {name: version for name, (version, _) in looks.items()}
    bad = {name: content.bad_lines for name, (_, content) in looks.items() if content.bad_lines}
    if note.schema:
        schema, further = note.arrow_schema, set()
        for name, (_, content) in looks.items():
            for column in merge_schemas([schema, content.schema]):
                if column.name not in schema.names:
                    further.add(column.name)
                elif column.type != schema.field(column.name).type:
                    had = schema.field(column.name).type
                    problem = f"type {content.schema.field(column.name).type}, but {had} in the "
                    problem += "files that were converted before; use another folder"
                    raise InputError(problem, path=name, column=column.name)
        if further:
            logger.warning("left out, absent before: columns %s", ", ".join(sorted(further)))
        return replace(note, files=files, bad_lines=note.bad_lines | bad)
    schema = merge_schemas(content.schema for _, content in looks.values())
    made_ids = bool(schema.names) and source.columns.id not in schema.names
    if made_ids:
        schema = schema.append(pa.field(source.columns.id, pa.string()))
    return _Note(files, bad, schema.serialize().to_pybytes().hex(), made_ids)


def _with_ids(
    batches: Iterable[pa.RecordBatch], made_from: str | None, source: Source
) -> Iterator[pa.RecordBatch]:
    """Batches with made ids: a digest of the file's name in the source, the row and the text."""
    row = 0
    for batch in batches:
        if made_from is not None and source.columns.text in batch.schema.names:
            texts = batch.column(source.columns.text).to_pylist()
            ids = [
                hashlib.md5(f"{made_from}\0{row + number}\0{text}".encode()).hexdigest()
                for number, text in enumerate(texts)
            ]
            place = batch.schema.get_field_index(source.columns.id)
            batch = batch.set_column(place, batch.schema.field(place), pa.array(ids, pa.string()))
        row += len(batch)
        yield batch


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches put together until they fill a row group."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(each.nbytes for each in waiting) >= GROUP_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)


@contextlib.contextmanager
def _local(name: str, storage: Storage) -> Iterator[str]:
    """A local path of a file; a remote one is copied for the block."""
    if not is_remote(name):
        yield name
        return
    with temporary_folder(storage.root) as folder:
        path = folder / name.rpartition("/")[2]
        with open_binary(name) as remote, path.open("wb") as file:
            shutil.copyfileobj(remote, file, 2**20)
        yield str(path)


def _version(name: str) -> str:
    """What changes if a file changes: its size and time, or the mark of its store."""
    if is_remote(name):
        filesystem, path = file_system(name)
        return str(filesystem.ukey(path))
    facts = os.stat(name)
    return f"{facts.st_size} bytes, {facts.st_mtime_ns}"


def _base(path: str) -> str:
    """The part of a source's path before its first wildcard."""
    parts = resolve_path(path).split("/")
    fixed = next((n for n, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    return "/".join(parts[:fixed]) + "/"


def _relative(name: str, base: str) -> str:
    """The name of a file within its source."""
    return name.removeprefix(base) if name.startswith(base) else name.rpartition("/")[2]
