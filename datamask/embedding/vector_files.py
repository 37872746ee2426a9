"""Vectors of the user's own in files: stage `vector_places`, and reading a shard's vectors.

The files may be far larger than memory and in any order. The stage joins only ids (DuckDB, out of
core) and notes at which row of which file the vector of each document is. A shard then reads these
rows. Files in the order of the source are read once in all; a file with documents of every shard
is read once for each shard.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from datamask.config.compute import Compute
from datamask.config.settings import Settings
from datamask.embedding import vectors
from datamask.errors import CorruptFileError, DatamaskError, InputError, gathering, together
from datamask.runs import schemas
from datamask.runs.files import read_columns
from datamask.runs.in_progress import advance
from datamask.runs.output import write_output
from datamask.runs.run import Run
from datamask.runs.schemas import Piece
from datamask.source.columns import feature_problem, is_id
from datamask.source.joining import digest_of_ids, load_ids
from datamask.source.opening import list_files, naming, open_binary, open_parquet
from datamask.source.reading import read_piece, row_error
from datamask.storage.duckdb_scratch import execute_with, temporary_duckdb
from datamask.storage.unchanged import not_as_planned

PIN = "vector_places:files"
"""Key of the digest of the files among a run's pinned revisions."""

ROWS_AT_ONCE = 4096
"""Number of vectors of an .npy file that are read together."""

BLOCKS, BLOCK_BYTES = 64, 4096
"""An .npy file is identified by its size and so many blocks of it, at equal distances."""


@dataclass(frozen=True, slots=True)
class VectorFile:
    """A file of N vectors, and the Parquet file with their ids: itself, or beside an .npy file."""

    path: str
    ids: str
    digest: str
    groups: int
    rows: int

    def read_ids(self, column: str) -> Iterator[pa.Array]:
        """Yield the ids, as text, in order.

        Raises:
            InputError: the column is absent, has another type, or an id is null.
        """
        first = 0
        with open_parquet(self.ids) as file:
            check_column(file.schema_arrow, self.ids, column, "embedding.id_column")
            if not is_id(kind := file.schema_arrow.field(column).type):
                problem = f"type {kind}, needed text or integer; write the ids as text"
                raise InputError(problem, path=self.ids, column=column)
            for batch in file.iter_batches(columns=[column]):
                ids = batch.column(0).cast(pa.string())
                if ids.null_count:
                    row = first + ids.is_null().index(True).as_py()
                    raise InputError("null; give every vector an id", path=self.ids, row=row)
                yield ids
                first += len(ids)

    def read(self, column: str, rows: np.ndarray | None = None) -> Iterator[pa.Array]:
        """Yield the vectors of all rows, or of some, ascending, as lists of numbers."""
        if self.path.lower().endswith(".npy"):
            yield from self._read_npy(rows)
            return
        piece = Piece(0, self.path, 0, self.groups, 0, self.rows, 0, self.digest)
        for batch in read_piece(piece, [column], rows) if self.rows else ():
            yield batch.column(0)

    def _read_npy(self, rows: np.ndarray | None) -> Iterator[pa.Array]:
        with naming(self.path), open_binary(self.path) as raw:
            (number, width), kind = _npy_header(raw, self.path)
            start, size = raw.tell(), width * kind.itemsize
            for first in range(0, number, ROWS_AT_ONCE):
                stop = min(first + ROWS_AT_ONCE, number)
                inside = np.arange(stop - first)
                if rows is not None:
                    inside = rows[slice(*np.searchsorted(rows, (first, stop)))] - first
                if not len(inside):
                    continue
                raw.seek(start + first * size)
                block = np.frombuffer(raw.read((stop - first) * size), kind).reshape(-1, width)
                flat = pa.array(np.ascontiguousarray(block[inside]).reshape(-1))
                yield pa.FixedSizeListArray.from_arrays(flat, width)


def check_column(schema: pa.Schema, path: str, column: str, setting: str) -> None:
    """Refuse a file without a column."""
    if schema.names.count(column) != 1:
        problem = f"absent; set {setting} to one of {', '.join(schema.names)}"
        raise InputError(problem, path=path, column=column)


def _npy_header(raw: Any, path: str) -> tuple[tuple[int, int], np.dtype[Any]]:
    """Read the shape and the type of the numbers in an .npy file, up to its first number."""
    try:
        version = np.lib.format.read_magic(raw)
        read = {(1, 0): np.lib.format.read_array_header_1_0}.get(
            version, np.lib.format.read_array_header_2_0
        )
        shape, is_fortran, kind = read(raw)
    except ValueError as error:
        raise InputError(f"not an .npy file ({error}); replace it", path=path) from None
    if len(shape) != 2 or is_fortran or kind.str not in ("<f2", "<f4", "<f8", "|i1"):
        problem = (
            f"an array of shape {shape} and type {kind}, needed are rows of float16, float32, "
        )
        problem += "float64 or int8 in C order; write it again"
        raise InputError(problem, path=path)
    start = raw.tell()
    size, needed = raw.seek(0, 2), start + shape[0] * shape[1] * kind.itemsize
    if size != needed:
        problem = f"{size:,} bytes, but its header announces {needed:,}; write it again"
        raise InputError(problem, path=path)
    raw.seek(start)
    return shape, kind


def open_files(settings: Settings) -> list[VectorFile]:
    """Look at the footers and headers of all files of vectors.

    Raises:
        InputError: a file is missing or unreadable, lacks a column, has vectors of another width
            than `embedding.dimension`, or an .npy file has another number of rows than its ids.
    """
    names = list_files(settings.vector_files, (".parquet", ".npy"))
    stems = {_stem(name) for name in names if name.lower().endswith(".npy")}
    files, problems = list[VectorFile](), list[DatamaskError]()
    for name in names:
        if name.lower().endswith(".npy") or _stem(name) not in stems:
            with gathering(problems):
                files.append(_look(name, settings))
    if problems:
        raise together(problems)
    return files


def _stem(name: str) -> str:
    return name[: name.rindex(".")]


def _look(name: str, settings: Settings) -> VectorFile:
    is_array, column = name.lower().endswith(".npy"), settings.vector_column
    ids = f"{_stem(name)}.parquet" if is_array else name
    with open_parquet(ids) as file:
        rows, groups, digest = file.metadata.num_rows, file.num_row_groups, file.digest
        if not is_array:
            check_column(file.schema_arrow, name, column, "embedding.column")
            kind = file.schema_arrow.field(column).type
    if is_array:
        with naming(name), open_binary(name) as raw:
            (number, width), _ = _npy_header(raw, name)
            kind, digest = pa.list_(pa.float32(), width), f"{digest}{_sampled(raw)}"
        if number != rows:
            raise InputError(
                f"{number} vectors, but {rows} ids in {ids}; write both again", path=name
            )
    if problem := feature_problem(kind, settings.embedding.dimension):
        raise InputError(problem, path=name, column=column)
    return VectorFile(name, ids, digest, groups, rows)


def _sampled(raw: Any) -> str:
    """Return a digest of the size and some blocks of a file."""
    size = raw.seek(0, 2)
    whole = hashlib.sha256(f"{size}".encode())
    for number in range(BLOCKS):
        raw.seek(max(0, size - BLOCK_BYTES) * number // (BLOCKS - 1))
        whole.update(raw.read(BLOCK_BYTES))
    return whole.hexdigest()[:32]


def digest_of_files(files: list[VectorFile]) -> str:
    """Return one digest of the names and digests of all files."""
    lines = "".join(f"{file.path}\0{file.digest}\n" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()[:32]


def load_places(connection: Any, files: list[VectorFile], column: str) -> None:
    """Make table `given`: the key of each vector's id, the number of its file, the row in it."""
    connection.execute("CREATE TABLE given (key UHUGEINT, file INTEGER, place BIGINT)")
    query = "INSERT INTO given SELECT md5_number(id), CAST(? AS INTEGER), place FROM arriving"
    for number, file in enumerate(files):
        first = 0
        for ids in file.read_ids(column):
            arriving = pa.table({"id": ids, "place": np.arange(first, first + len(ids))})
            execute_with(connection, arriving, query, number)
            first += len(ids)
        advance(number + 1, len(files), "files of vectors")


def locate_vectors(run: Run, compute: Compute) -> None:
    """Write every `vector_places/NNNNN.parquet` that is missing or stale.

    Metrics of the receipts: `ids`, a digest of the shard's ids in order, and `files`, the path and
    digest of each file. Refuses files that are unreadable or not as planned.
    """
    remaining, files = run.remaining("vector_places"), open_files(run.settings)
    if digest_of_files(files) != run.pinned_revisions[PIN]:
        raise not_as_planned(run.settings.vector_files)
    known = [astuple(file) for file in files]
    with temporary_duckdb(run.root, compute) as connection:
        digests = load_ids(connection, run, remaining)
        load_places(connection, files, run.settings.embedding.id_column)
        # Sorted rows let DuckDB skip other shards when one is read.
        query = "SELECT shard, row, file, place FROM given JOIN ids USING (key) ORDER BY shard"
        connection.execute(f"CREATE TABLE places AS {query}")
        for shard in remaining:
            located = connection.execute(
                "SELECT row, file, place FROM places WHERE shard = ?", [shard]
            ).fetchnumpy()
            places = np.full((2, run.shard_rows(shard)), -1)
            places[:, located["row"]] = located["file"], located["place"]
            is_absent = places[0] < 0
            columns = [
                pa.array(values, field.type, mask=is_absent)
                for values, field in zip(places, schemas.VECTOR_PLACES, strict=True)
            ]
            table = pa.Table.from_arrays(columns, schema=schemas.VECTOR_PLACES)
            metrics = {"ids": digests[shard], "files": known}
            write_output(run, "vector_places", shard, table.schema, [table], metrics)


def read_placed(run: Run, shard: int, ids: pa.Array, rows: np.ndarray) -> np.ndarray:
    """Read the unit vectors of some rows of a shard from their files; float16, N x D.

    *ids* names all documents of the shard.

    Raises:
        InputError: a document has no vector, or a bad one, or a file is not as planned.
        CorruptFileError: the places belong to other documents.
    """
    receipt, path = run.receipt("vector_places", shard), run.path("vector_places", shard)
    if receipt.metrics["ids"] != digest_of_ids(pa.chunked_array([ids])):
        raise CorruptFileError(f"{path}: its ids differ from the source's; delete it and relaunch")
    places = read_columns(path, schemas.VECTOR_PLACES.names)
    number, at = (places[name].fill_null(-1).to_numpy()[rows] for name in places.column_names)
    if (number < 0).any():
        row = int(rows[np.argmax(number < 0)])
        problem = f"no vector in {run.settings.vector_files}; add it, or drop the document"
        raise row_error(run, shard, row, run.settings.source.id_column, problem)
    matrix = np.empty((len(rows), run.settings.embedding.dimension), np.float16)
    for index, facts in enumerate(receipt.metrics["files"]):
        mine = np.flatnonzero(number == index)
        order, done = mine[np.argsort(at[mine])], 0
        if not len(mine):
            continue
        file = VectorFile(*facts)
        if _look(file.path, run.settings) != file:
            raise not_as_planned(file.path)
        for given in file.read(run.settings.vector_column, at[order]):
            batch = order[done : done + len(given)]
            matrix[batch] = unit_rows(given, run.settings, file.path, at[batch])
            done += len(given)
    return matrix


def unit_rows(given: pa.Array, settings: Settings, path: str, rows: np.ndarray) -> np.ndarray:
    """Turn N vectors of a file, at these rows of it, into unit rows, float32, N x D.

    Raises:
        InputError: a vector is missing, has another width, is not finite or is zero.
    """
    name = settings.vector_column
    try:
        matrix = vectors.to_matrix(given, settings.embedding.dimension, path=path, name=name)
        return vectors.normalise(matrix, path=path, name=name)
    except InputError as error:
        row = int(rows[error.row or 0])
        raise InputError(error.problem, path=path, row=row, column=name) from None
