"""Documents from Parquet files, local or behind an fsspec URL.

Shards are row ranges that ignore file boundaries, so reading one means cutting row groups at the
right rows. This module guarantees that a shard's reader yields exactly the plan's rows, in order,
in one schema, and reads only the columns asked for. Whatever is wrong with a file is one line
that names it. Credentials and endpoints come from the environment alone (HF_TOKEN, AWS_*).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from datamask.config import Source
from datamask.errors import (
    NOT_UTF8,
    DatamaskError,
    HubUnavailableError,
    InputError,
    StorageError,
    is_transient,
    is_utf8,
    together,
)
from datamask.store import Piece, Run
from datamask.work_record import note

SCHEMA_KEY = b"datamask-source-schema"
"""Where plan.parquet keeps the source's one schema (Arrow IPC, in hexadecimal)."""

SOURCE_PIN = "scores:source"
"""The key of the commit a Hub source is read at, among a run's pins."""

BATCH_ROWS = 8192

FETCH_BYTES = 64 * 2**20
"""Compressed bytes of a remote file held at a time, if one row group is not larger."""

SIGNATURE_BYTES = 28
"""Nonce and tag that follow a plain footer where columns are encrypted (Parquet Modular Encryption,
section 5.5)."""

PARQUET = (".parquet",)


def is_remote(path: str) -> bool:
    """Whether a path is a URL that fsspec has to open."""
    return "://" in path and not path.startswith("file://")


def resolve_path(path: str) -> str:
    """A local path or glob made absolute; URLs as they are."""
    if not path or is_remote(path):
        return path
    return str(Path(path.removeprefix("file://")).expanduser().absolute())


@contextlib.contextmanager
def naming(path: str, shard: int | None = None) -> Iterator[None]:
    """Turn what reading *path* may raise into one line that names it."""
    try:
        yield
    except FileNotFoundError:
        raise InputError("no such file; restore it", path=path, shard=shard) from None
    except DatamaskError:
        raise
    except UnicodeEncodeError:
        raise InputError(NOT_UTF8, path=path, shard=shard) from None
    except PermissionError:
        raise InputError("no right to read it; change its mode", path=path, shard=shard) from None
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if path.startswith("hf://") and _hub_is_unavailable(error):
            raise HubUnavailableError(f"{path}: {reason}; try again later") from None
        if path.startswith("hf://") and _status(error) in (401, 403, 404):
            raise InputError(
                f"cannot be read ({reason}); check the address, and that HF_TOKEN may read it",
                path=path,
                shard=shard,
            ) from None
        if is_transient(error):
            raise StorageError(f"file {path}: {reason}; try again") from error
        if not isinstance(error, pa.ArrowException | OSError | UnicodeDecodeError):
            raise
        raise InputError(
            f"cannot be read ({reason}); replace it with a whole file", path=path, shard=shard
        ) from None


def _hub_is_unavailable(error: Exception) -> bool:
    """Whether the Hub did not answer, or asks to come back later."""
    from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # httpx2 since 2.0

    status = _status(error)
    return isinstance(error, httpx.TransportError) or status == 429 or status >= 500


def _status(error: Exception) -> int:
    """The status of the HTTP answer that an error came from; 0 if it came from none."""
    return getattr(getattr(error, "response", None), "status_code", None) or 0


@contextlib.contextmanager
def opening(path: str) -> Iterator[None]:
    """Turn what a path or URL that cannot be understood provokes into one line that names it."""
    try:
        with naming(path):
            yield
    except ImportError as error:
        reason = " ".join(str(error).split())
        raise InputError(f"needs a package that is not here ({reason})", path=path) from None
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise InputError(f"not a path or URL ({reason}); check it", path=path) from None
    except DatamaskError:
        raise
    except Exception as error:
        # Every object store's client has errors of its own, most often about credentials.
        if not is_remote(path):
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            f"cannot be listed ({reason}); check the address, and the credentials in the "
            "environment",
            path=path,
        ) from None


def list_files(path: str, suffixes: tuple[str, ...] = PARQUET) -> tuple[str, ...]:
    """The files of a folder (recursive), glob, single file or fsspec URL, sorted by path.

    Args:
        path: as in the settings.
        suffixes: file names that count in a folder, in lower case.

    Raises:
        InputError: nothing is there.
    """
    import fsspec

    with opening(path):
        filesystem, place = fsspec.core.url_to_fs(resolve_path(path))
        if filesystem.isfile(place):
            names = [place]
        else:
            # The name of a folder that is there may hold such characters too.
            is_glob = any(character in place for character in "*?[") and not filesystem.isdir(place)
            names = filesystem.glob(place) if is_glob else filesystem.find(place)
            names = [name for name in names if name.lower().endswith(suffixes)]
            names = [name for name in names if not name.rpartition("/")[2].startswith(".")]
    odd = [InputError(NOT_UTF8, path=n) for n in names if not is_utf8(n)]
    if odd:
        raise together(odd)
    if not names:
        raise InputError(
            f"no {', '.join(suffixes)} files found; check the path, and the right to read it",
            path=path,
        )
    if not is_remote(path):
        return tuple(sorted(names))
    return tuple(sorted(filesystem.unstrip_protocol(name) for name in names))


def open_binary(path: str, shard: int | None = None, **options: str) -> IO[bytes]:
    """Open a local or remote file for reading.

    Args:
        path: of the file.
        shard: for messages.
        **options: of the file system.

    Raises:
        InputError: it is not there.
    """
    import fsspec

    with naming(path, shard):
        filesystem, place = fsspec.core.url_to_fs(path)
        file: IO[bytes] = filesystem.open(place, "rb", **options)
        return file


@contextlib.contextmanager
def open_parquet(path: str, shard: int | None = None) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file; what goes wrong inside the block names it too.

    Of a remote file, only what is asked for is fetched, in few large requests, and nothing is kept
    on disk.

    Raises:
        InputError: missing, truncated, encrypted, or not a Parquet file.
    """
    with naming(path, shard), contextlib.ExitStack() as stack:
        # fsspec reads ahead, past the columns that are wanted; Arrow joins neighbours itself.
        exact = {"cache_type": "none"} if path.startswith(("hf://", "s3://")) else {}
        place = stack.enter_context(open_binary(path, shard, **exact))
        length = footer_length(place, path, shard)
        # Arrow reads local files itself, which is faster than through a Python file.
        whole = pq.ParquetFile(place, pre_buffer=True) if is_remote(path) else pq.ParquetFile(path)
        file = stack.enter_context(whole)
        if length - file.metadata.serialized_size == SIGNATURE_BYTES:
            # PyArrow ends the whole process when it is asked about an encrypted column.
            problem = "has encrypted columns; decrypt it"
            raise InputError(problem, path=path, shard=shard)
        yield file


def footer_length(file: IO[bytes], path: str, shard: int | None = None) -> int:
    """Bytes of a Parquet file's footer, without the eight that end the file.

    Raises:
        InputError: the footer is encrypted, the file truncated, or not a Parquet file.
    """
    size = file.seek(0, 2)
    file.seek(max(0, size - 8))
    tail = file.read(8)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] == b"PARE":
        raise InputError("its footer is encrypted; decrypt it", path=path, shard=shard)
    if tail[4:] != b"PAR1" or length + 12 > size:
        problem = "truncated, or not a Parquet file; replace it"
        raise InputError(problem, path=path, shard=shard)
    return length


def plain_type(kind: pa.DataType) -> pa.DataType:
    """A column's type, whatever its encoding in memory: a dictionary's values, a view as text."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(plain_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(plain_type(field.type)) for field in kind])
    # Few of Arrow's functions take views.
    views = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    return views.get(kind, kind)


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """A schema without metadata and encodings, which may differ between equal files."""
    return pa.schema([pa.field(field.name, plain_type(field.type)) for field in schema])


def unify_schemas(schemas: Iterable[tuple[str, pa.Schema]]) -> pa.Schema:
    """The one schema of all files: small differences are widened (string, large_string).

    Args:
        schemas: path and schema of each file.

    Raises:
        InputError: columns are absent from a file, or types do not go together; all of them.
    """
    unified: pa.Schema | None = None
    first = ""
    problems: list[DatamaskError] = []
    for path, schema in schemas:
        plain = plain_schema(schema)
        repeated = sorted(name for name in {*plain.names} if plain.names.count(name) > 1)
        for name in repeated:
            problem = "occurs more than once in the file; give every column its own name"
            problems.append(InputError(problem, path=path, column=name))
        if repeated:
            continue
        if unified is None:
            unified, first = plain, path
            continue
        if plain.equals(unified):
            continue
        different = sorted({*plain.names} ^ {*unified.names})
        for name in different:
            lacking, having = (path, first) if name in unified.names else (first, path)
            problems.append(
                InputError(
                    f"absent, but {having} has it; give all files the same columns",
                    path=lacking,
                    column=name,
                )
            )
        if different:
            continue
        fields = []
        for field in unified:
            pair = [pa.schema([field]), pa.schema([plain.field(field.name)])]
            try:
                fields.append(pa.unify_schemas(pair, promote_options="permissive").field(0))
            except (pa.ArrowInvalid, pa.ArrowTypeError):
                fields.append(field)
                problems.append(
                    InputError(
                        f"type {pair[1].field(0).type} does not fit {field.type} in {first}; "
                        "give all files the same types",
                        path=path,
                        column=field.name,
                    )
                )
        unified = pa.schema(fields)
    if problems:
        raise together(problems)
    if unified is None:
        raise InputError("no files")
    return unified


def invalid_text(values: pa.Array) -> int | None:
    """The place of the first text that is not UTF-8; None if all are. Arrow does not look."""
    try:
        values.validate(full=True)
        return None
    except pa.ArrowInvalid:
        for place, value in enumerate(values.view(_BYTES[values.type]).to_pylist()):
            try:
                (value or b"").decode()
            except UnicodeDecodeError:
                return place
        raise


_BYTES = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}


def source_schema(run: Run, shard: int | None = None) -> pa.Schema:
    """The schema of the source's columns, as `read_shard` yields them.

    Args:
        run: a planned run.
        shard: for messages.
    """
    metadata = pq.read_schema(run.plan_path).metadata or {}
    if SCHEMA_KEY in metadata:
        return pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(metadata[SCHEMA_KEY].decode())))
    with open_parquet(run.pieces[0].path, shard) as file:
        return plain_schema(file.schema_arrow)


def read_shard(run: Run, shard: int, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Stream the rows that the plan puts in a shard, in order, in the source's schema.

    Args:
        run: a planned run.
        shard: its number.
        columns: names to read, in this order; None reads all.

    Raises:
        InputError: a file is unreadable, lacks a column or does not have the planned rows.
    """
    schema = source_schema(run, shard)
    names = schema.names if columns is None else columns
    for name in names:
        if name not in schema.names:
            raise InputError(
                "absent; check source.columns", path=run.pieces[0].path, shard=shard, column=name
            )
    schema = pa.schema([schema.field(name) for name in names])
    total = 0
    for piece in run.shard_pieces[shard]:
        for batch in read_piece(piece, names):
            total += batch.num_rows
            yield _cast(batch, schema, piece)
    if total != run.shard_rows(shard):
        raise InputError(f"{total} rows read, {run.shard_rows(shard)} planned", shard=shard)


def read_piece(piece: Piece, names: list[str]) -> Iterator[pa.RecordBatch]:
    """The planned rows of one file, in the file's own types."""
    skip, left = piece.skip_rows, piece.rows
    groups = range(piece.first_row_group, piece.first_row_group + piece.num_row_groups)
    with open_parquet(piece.path, piece.shard) as file:
        if groups.stop > file.num_row_groups:
            raise InputError(
                "fewer row groups than planned; restore the file",
                path=piece.path,
                shard=piece.shard,
            )
        for name in names:
            if name not in file.schema_arrow.names:
                raise InputError("absent", path=piece.path, shard=piece.shard, column=name)
        for batch in _batches(file, groups, names):
            if skip >= batch.num_rows:
                skip -= batch.num_rows
                continue
            part = batch.slice(skip, left)
            skip, left = 0, left - part.num_rows
            yield part
            if not left:
                return
    raise InputError(
        f"{left} of {piece.rows} planned rows are missing; restore the file",
        path=piece.path,
        shard=piece.shard,
    )


def _batches(file: pq.ParquetFile, groups: range, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Batches of some row groups, as many at a time as are fetched together."""
    together: list[int] = []
    size = 0
    for group in groups:
        columns = file.metadata.row_group(group)
        chunks = (columns.column(place) for place in range(columns.num_columns))
        together.append(group)
        size += sum(
            chunk.total_compressed_size
            for chunk in chunks
            if chunk.path_in_schema.partition(".")[0] in names
        )
        if size >= FETCH_BYTES or group == groups[-1]:
            note(source_bytes=size)
            yield from file.iter_batches(
                batch_size=BATCH_ROWS, row_groups=together, columns=names, use_threads=False
            )
            together, size = [], 0


def _cast(batch: pa.RecordBatch, schema: pa.Schema, piece: Piece) -> pa.RecordBatch:
    arrays = []
    for field in schema:
        try:
            arrays.append(batch.column(field.name).cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InputError(
                f"does not cast to {field.type} ({' '.join(str(error).split())})",
                path=piece.path,
                shard=piece.shard,
                column=field.name,
            ) from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def locate(run: Run, shard: int, row: int) -> tuple[str, int]:
    """The file and the row within it (from 0) of a shard's row; for messages."""
    for piece in run.shard_pieces[shard]:
        if row < piece.rows:
            with open_parquet(piece.path) as file:
                before = sum(
                    file.metadata.row_group(group).num_rows
                    for group in range(piece.first_row_group)
                )
            return piece.path, before + piece.skip_rows + row
        row -= piece.rows
    raise IndexError(row)


def pin_source(source: Source) -> dict[str, str]:
    """Look up the commit that a Hub source stands at; nothing for other sources.

    Returns:
        `scores:source` and the commit, for `create_run`; see `pinned_path`.

    Raises:
        InputError: there is no such data set, or no right to read it.
        HubUnavailableError: the Hub does not answer.
    """
    if not source.path.startswith("hf://"):
        return {}
    from huggingface_hub import HfApi, HfFileSystem

    with opening(source.path):
        place: Any = HfFileSystem().resolve_path(source.path)
        found = HfApi().repo_info(place.repo_id, repo_type=place.repo_type, revision=place.revision)
    return {SOURCE_PIN: str(found.sha)}


def pinned_path(path: str, pins: dict[str, str]) -> str:
    """A Hub path at its pinned commit; other paths as they are."""
    commit = pins.get(SOURCE_PIN)
    if commit is None or not path.startswith("hf://"):
        return path
    from huggingface_hub import HfFileSystem

    place: Any = HfFileSystem().resolve_path(path)
    kind = "" if place.repo_type == "model" else f"{place.repo_type}s/"
    tail = f"/{place.path_in_repo}" if place.path_in_repo else ""
    return f"hf://{kind}{place.repo_id}@{commit}{tail}"
