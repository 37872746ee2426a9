"""Convert JSON lines, CSV, Arrow and Lance to Parquet, once, so that shards can be cut and read.

The copies, one per file, are in the folder `converted/` of a run, or of a folder of the user's
(`datamask ingest`). All copies have the schema of the files that were converted first. A note lists
these files, so that an interrupted conversion goes on, and a changed file is refused.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import logging
import os
import shlex
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import islice
from operator import attrgetter
from pathlib import Path

import pyarrow as pa

from datamask.config.compute import Compute
from datamask.config.inputs import Source
from datamask.errors import InputError
from datamask.runs.files import link_file, parquet_output, write_parquet, write_text_file
from datamask.runs.in_progress import each_in_turn
from datamask.runs.schemas import MADE_IDS
from datamask.source import formats
from datamask.source.lance_datasets import identify, read_dataset, split_datasets
from datamask.source.one_schema import merge_schemas
from datamask.source.opening import (
    check_regular,
    is_remote,
    list_files,
    naming,
    open_binary,
    resolve_path,
)
from datamask.source.originals import (
    ARROW,
    FOLDER,
    LANCE,
    NOTE,
    PARQUET,
    Note,
    base_of,
    copy_name,
    read_note,
)
from datamask.source.reading import joined
from datamask.source.rows import RECORD_BYTES
from datamask.storage.clients import file_system
from datamask.storage.local import Storage, check_no_folder
from datamask.storage.temporary import temporary_folder
from datamask.storage.unchanged import content_digest

logger = logging.getLogger(__name__)

MARKS = ("size", "ETag", "etag", "blob_id", "md5Hash", "mtime", "LastModified", "created")
"""Facts by which stores identify a version of a file, apart from its commit."""

GROUP_BYTES = 64 * 2**20
"""Bytes of rows that fill a row group of a copy."""


OTHER_FORMATS = {
    ".tar": ("an archive, as of WebDataset", "JSON lines or Parquet, a row each"),
    ".mds": ("a shard of MosaicML Streaming (MDS)", "Parquet, such as by streaming's MDSReader"),
    LANCE: ("a file of Lance outside a dataset on a disk (a folder `x.lance`)", "Parquet"),
}
"""Formats of datasets that are not read: by the end of a file's name, what it is and a remedy."""


def source_files(path: str) -> tuple[list[str], list[str]]:
    """List the Parquet files of a source, and the files to convert, each sorted by path.

    Files that end with `.json` count only if there are no others: datasets have such files beside
    their data. A warning names the files of unknown formats; without any other, they are refused.
    """
    datasets, names = split_datasets(base_of(path), list_files(path, ("",)))
    is_file = names and names[0].rpartition("/")[2] == path.rpartition("/")[2]
    if is_file and not names[0].lower().endswith((*formats.CONVERTED, LANCE)):
        return [*names], []
    for ending, (kind, remedy) in OTHER_FORMATS.items():
        if found := [name for name in names if name.lower().endswith(ending)]:
            problem = f"{kind}, which is not read; write its samples as {remedy}"
            raise InputError(problem, path=found[0])
    parquet = [name for name in names if name.lower().endswith(PARQUET)]
    others = [name for name in names if name.lower().endswith(formats.CONVERTED)]
    certain = [name for name in others if not name.lower().endswith(".json")]
    if parquet or certain or datasets:
        others = certain
    check_regular([*parquet, *others])
    unread = sorted({*names} - {*parquet} - {*others})
    others = sorted([*others, *datasets])
    if not parquet and not others:
        known = ", ".join((PARQUET, *formats.CONVERTED, LANCE))
        raise InputError(f"no files of a known format ({known}) among {unread[:3]}", path=path)
    if unread:
        more = f" and {len(unread) - 3:,} more" if len(unread) > 3 else ""
        logger.warning("%s: not read: %s%s", path, ", ".join(unread[:3]), more)
    return parquet, others


def convert(
    path: str,
    names: Sequence[str],
    source: Source,
    storage: Storage,
    compute: Compute,
    *,
    may_write: bool = True,
    is_planned: bool = True,
) -> tuple[list[str], dict[str, str]]:
    """Convert local or remote files that are not converted yet, `compute.workers` at once.

    *path* is the source at its commit and contains the files *names*; *storage* gets the copies. If
    no file has the column of ids, ids are made from file and row. Unless *is_planned*, no run has
    shards of the copies, and a file may have changed since it was converted.

    Returns:
        The copies, in the order of *names*; and what was done to the rows, as pinned revisions.

    Raises:
        InputError: a file cannot be read, has too many bad lines, has changed since it was
            converted, or has a column of another type than the files before it; or, without
            *may_write*, files are not converted.
    """
    note, base = read_note(storage), base_of(path)
    files = {name.removeprefix(base): name for name in names}
    copies = {file: f"{FOLDER}/{copy_name(file)}" for file in files}
    for copy in copies.values():
        check_no_folder(storage.root / copy)
    try:
        for file, name in files.items():
            if file in note.files:
                _check_unchanged(name, *note.files[file])
    except InputError:
        if is_planned:
            raise
        note = Note()  # No run has shards of the copies yet, so all are made anew.
    new = {file: name for file, name in files.items() if file not in note.files}
    made = {*storage.list(FOLDER, f"*{PARQUET}")}
    lacking = [file for file in files if file in new or copies[file] not in made]
    if lacking and not may_write:
        raise not_converted(source.path, len(lacking))
    if new:
        logger.info("%s: %d files to convert to Parquet", source.path, len(new))
        look = functools.partial(_look, source=source, storage=storage)
        looks = [*each_in_turn(look, [*new.values()], compute.workers, "files looked into")]
        note = _extended(note, base, dict(zip(new, looks, strict=True)), source.columns.id)
        write_text_file(storage.root / NOTE, json.dumps(asdict(note)), storage)

    def write(file: str) -> None:
        name, schema = files[file], note.arrow_schema
        with _local(name, storage) as (path, repaired_copy):
            if file in note.lone_surrogates:
                formats.repair(path, name, repaired_copy)
                path = str(repaired_copy)
            if name.lower().endswith(LANCE):
                records = read_dataset(name, note.files[file][0], schema)
            else:
                records = formats.read_records(path, name, schema)
            batches = _with_ids(records, note.made_ids, file)
            groups = joined(batches, attrgetter("nbytes"), GROUP_BYTES)
            with parquet_output(storage.root / copies[file], schema, storage=storage) as add:
                for group in groups:
                    add(group)
                _check_unchanged(name, *note.files[file])

    for _ in each_in_turn(write, lacking, compute.workers, "files converted"):
        pass
    bad = sum(note.bad_lines.get(file, 0) for file in files)
    pins = {"scores:bad_lines": str(bad)} if bad else {}
    if lone := sum(note.lone_surrogates.get(file, 0) for file in files):
        logger.warning("%s: %d lone surrogates in JSON are U+FFFD", path, lone)
        pins["scores:lone_surrogates"] = str(lone)
    if note.made_ids == source.columns.id:
        logger.warning("%s: no column %s; file and row are the ids", path, note.made_ids)
        pins[MADE_IDS] = "file and row"
    return [f"{resolve_path(storage.address)}/{copies[file]}" for file in files], pins


def share_copies(other: Storage, own: Storage) -> None:
    """Link, or else copy, the converted files of another run, with their checksums and note.

    Each run has its own copies: extending one changes nothing of the other.
    """
    for name in (*other.list(FOLDER, f"*{PARQUET}"), NOTE):
        write_text_file(own.root / own.record_name(name), other.record(name).text, own)
        link_file(other.root / name, own.root / name, own.root)


class NotConvertedError(InputError):
    """Files must be converted before they can be checked; a launch does it."""


def not_converted(path: str, files: int) -> NotConvertedError:
    """Return the error about files that must be converted first."""
    return NotConvertedError(
        f"{files:,} files are not Parquet, and a launch converts them first; `datamask ingest "
        f"{shlex.quote(path)} pool` does it now, for any number of runs",
        path=path,
    )


_Look = tuple[list[str], pa.Schema, int, int]
"""Version and digest of a file, its columns, and its numbers of bad lines and lone surrogates."""


def _look(name: str, source: Source, storage: Storage) -> _Look:
    if name.lower().endswith(LANCE):
        return *identify(name), 0, 0
    version = _version(name)
    with _local(name, storage) as (path, repaired_copy):
        formats.check_whole(path, name)
        most, of_text = source.most_bad_lines, source.columns.of_text
        look = formats.look_into(path, name, most, of_text, repaired_copy)
        return [version, content_digest(path)], *look


def first_records(name: str, size: int, copy: Path, of_text: Collection[str]) -> None:
    """Write the records in the first *size* bytes of a file to Parquet; all of an Arrow file.

    Of a Lance dataset, these are the first rows.
    """
    if name.lower().endswith(LANCE):
        _, schema = identify(name)
        write_parquet(copy, schema, islice(read_dataset(name, "", schema), 1))
        return
    ending = next(end for end in formats.CONVERTED if name.lower().endswith(end))
    head = copy.with_name(f"head{ending.removesuffix('.gz').removesuffix('.zst')}")
    with naming(name), open_binary(name) as raw, head.open("wb") as beginning:
        if ending in ARROW:
            shutil.copyfileobj(raw, beginning)
        else:
            compression = {".gz": "gzip", ".zst": "zstd"}.get(Path(ending).suffix)
            lines = io.BufferedReader(pa.input_stream(raw, compression=compression))
            beginning.write(lines.read(size) + lines.readline(RECORD_BYTES))
    repaired_copy = copy.with_name("repaired.jsonl")
    schema, _, lone = formats.look_into(str(head), name, 0, of_text, repaired_copy)
    head, schema = repaired_copy if lone else head, merge_schemas([(name, schema)])
    write_parquet(copy, schema, formats.read_records(str(head), name, schema))


def _check_unchanged(name: str, version: str, digest: str) -> None:
    """Refuse a file that has changed; a local file with the same content has not."""
    if name.lower().endswith(LANCE):
        is_same = identify(name, version)[0] == [version, digest]
    else:
        is_local = not is_remote(name)
        is_same = _version(name) == version or (is_local and content_digest(name) == digest)
    if not is_same:
        problem = "has changed since it was converted; restore it, or use another folder"
        raise InputError(problem, path=name)


def _extended(note: Note, base: str, looks: dict[str, _Look], id_column: str) -> Note:
    """Add files to the note; they keep to the schema of the first ones."""
    files = note.files | {file: version for file, (version, *_) in looks.items()}
    bad = {file: lines for file, (*_, lines, _) in looks.items() if lines}
    lone = note.lone_surrogates | {file: count for file, (*_, count) in looks.items() if count}
    if note.schema:
        schema, further = note.arrow_schema, set[str]()
        for file, (_, other, *_) in looks.items():
            further |= {*other.names} - {*schema.names}
            merged = merge_schemas([("", schema), (base + file, other)])
            for had in schema:
                if merged.field(had.name).type != had.type:
                    problem = f"type {other.field(had.name).type}, but {had.type} in the "
                    problem += "files that were converted before; use another folder"
                    raise InputError(problem, path=base + file, column=had.name)
        if further:
            logger.warning("left out, absent before: columns %s", ", ".join(sorted(further)))
        bad |= note.bad_lines
        return replace(note, base=base, files=files, bad_lines=bad, lone_surrogates=lone)
    schema = merge_schemas((base + file, look[1]) for file, look in looks.items())
    made_ids = "" if id_column in schema.names or not schema.names else id_column
    if made_ids:
        schema = schema.append(pa.field(made_ids, pa.string()))
    return Note(base, files, bad, schema.serialize().to_pybytes().hex(), made_ids, lone)


def _with_ids(
    batches: Iterable[pa.RecordBatch], column: str, file: str
) -> Iterator[pa.RecordBatch]:
    """Add ids to batches in a column: the file's name within the source, and the row in it."""
    row = 0
    for batch in batches:
        if column:
            ids = pa.array([f"{file}:{row + number}" for number in range(len(batch))], pa.string())
            index = batch.schema.get_field_index(column)
            batch = batch.set_column(index, batch.schema.field(index), ids)
        row += len(batch)
        yield batch


@contextlib.contextmanager
def _local(name: str, storage: Storage) -> Iterator[tuple[str, Path]]:
    """Yield a local path of a file, of a copy if it is remote, and one for its repaired lines."""
    with temporary_folder(storage.root) as folder:
        path = name
        if is_remote(name):
            path = str(folder / name.rpartition("/")[2])
            with open_binary(name) as remote, open(path, "wb") as file:
                shutil.copyfileobj(remote, file, 2**20)
        yield path, folder / "repaired.jsonl"


def _version(name: str) -> str:
    """Return a text that changes with a file: its size and time, or its store's marks."""
    if is_remote(name):
        filesystem, path = file_system(name)
        facts = filesystem.info(path)
        return str({mark: str(facts[mark]) for mark in MARKS if mark in facts})
    of_disk = os.stat(name)
    return f"{of_disk.st_size} bytes, {of_disk.st_mtime_ns}"
