"""Cut the source into shards, once, and refuse to go on when it has changed since.

The plan is a pure function of the input files and the settings: shards are ranges of row groups,
bounded in rows and bytes, whatever the files' sizes. Everything that can be wrong with the input
and is cheap to see is looked for here, before anything expensive, and reported together: columns,
types, score files, budget, room on the disk, and ids that are absent or not unique.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from datamask import budget, schemas
from datamask.config import Compute, Settings
from datamask.errors import DatamaskError, InputError, RunError, SettingsError
from datamask.sources import (
    SCHEMA_KEY,
    is_remote,
    list_files,
    open_binary,
    open_parquet,
    pin_source,
    pinned_path,
    plain_schema,
    resolve_path,
    unify_schemas,
)
from datamask.store import Piece, Run, create_run, open_run, write_parquet

SCORE_SUFFIXES = (".parquet", ".csv", ".jsonl", ".ndjson")
SCORES_BYTES, QUALITY_BYTES, MASK_BYTES = 100, 60, 40
"""Estimated bytes on disk of one document in `scores/`, `quality/` and `masks/`."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """What a Parquet footer says of a file.

    Args:
        path: absolute, or a URL.
        size: bytes of the file.
        digest: what identifies its content (`settings.plan.digest`).
        groups: rows and uncompressed bytes of each row group.
        schema: its columns.
    """

    path: str
    size: int
    digest: str
    groups: tuple[tuple[int, int], ...]
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class PlanPreview:
    """What a plan would be; nothing has been written.

    Args:
        settings: resolved: paths absolute.
        pins: what was looked up for them.
        files: number of source files.
        pieces: the cut.
        documents: rows in the source.
        bytes: size of the source's files.
        disk: bytes needed, estimated, by folder of the run.
        schema: the source's columns.
    """

    settings: Settings
    pins: dict[str, str]
    files: int
    pieces: tuple[Piece, ...]
    documents: int
    bytes: int
    disk: dict[str, int]
    schema: pa.Schema

    @property
    def num_shards(self) -> int:
        """Number of shards."""
        return self.pieces[-1].shard + 1


def plan_run(root: Path, settings: Settings, compute: Compute | None = None) -> Run:
    """Check the input, cut it into shards and write plan.parquet and run.json.

    A folder that is planned already keeps its plan; new settings that do not change the cut are
    taken over and make the outputs that depend on them stale.

    Raises:
        SettingsError: a setting does not fit the source.
        InputError: the source breaks the contract; all cheap problems are named at once.
        RunError: the folder's plan is of another input or another cut, or the disk is too small.
    """
    compute = compute or Compute()
    planned = (root / "run.json").exists() and (root / "plan.parquet").exists()
    before = open_run(root) if planned else None
    found = _examine(settings, before)
    if before is not None:
        _check_same_cut(before, found)
        if before.settings.source.id_column != found.settings.source.id_column:
            check_ids(root, found.pieces, found.settings.source.id_column, compute)
        return create_run(root, found.settings, found.pins)
    _check_room(root, found.disk)
    root.mkdir(parents=True, exist_ok=True)
    check_ids(root, found.pieces, found.settings.source.id_column, compute)
    encoded = found.schema.serialize().to_pybytes().hex()
    schema = schemas.PLAN.with_metadata({SCHEMA_KEY: encoded})
    table = pa.Table.from_pylist([asdict(piece) for piece in found.pieces], schema=schema)
    write_parquet(root / "plan.parquet", schema, [table])
    return create_run(root, found.settings, found.pins)


def preview(settings: Settings) -> PlanPreview:
    """What `plan_run` would do, with all its cheap checks and without writing anything.

    Raises:
        SettingsError: a setting does not fit the source.
        InputError: the source breaks the contract.
    """
    return _examine(settings, None)


def cut(
    files: Iterable[SourceFile], rows_per_shard: int, bytes_per_shard: int
) -> tuple[Piece, ...]:
    """Cut files into shards of consecutive rows, none above the limits.

    Row groups stay whole unless one alone is above a limit; then it is split evenly by rows. (A
    single row may be larger than *bytes_per_shard*; it is a shard by itself.)

    Returns:
        The pieces in order of shard; every row is in exactly one.
    """
    pieces: list[Piece] = []
    shard = rows_in = bytes_in = 0
    for file in files:
        for group, (rows, size) in enumerate(file.groups):
            if not rows:
                continue
            most = max(1, min(rows_per_shard, rows * bytes_per_shard // max(size, 1)))
            parts = -(-rows // most)
            for part in range(parts):
                start, stop = rows * part // parts, rows * (part + 1) // parts
                weight = size * stop // rows - size * start // rows
                too_many = rows_in + stop - start > rows_per_shard
                if rows_in and (too_many or bytes_in + weight > bytes_per_shard):
                    shard, rows_in, bytes_in = shard + 1, 0, 0
                rows_in += stop - start
                bytes_in += weight
                _append(pieces, shard, file, group, start, stop - start, weight)
    return tuple(pieces)


def _append(
    pieces: list[Piece], shard: int, file: SourceFile, group: int, skip: int, rows: int, size: int
) -> None:
    """Add rows of a row group, as part of the last piece where they follow it."""
    first = group
    if pieces and pieces[-1].shard == shard and pieces[-1].path == file.path:
        last = pieces.pop()
        first, skip = last.first_row_group, last.skip_rows
        rows, size = rows + last.rows, size + last.bytes
    pieces.append(Piece(shard, file.path, first, group - first + 1, skip, rows, size, file.digest))


def _examine(settings: Settings, before: Run | None) -> PlanPreview:
    """Resolve the settings, read every footer, look for every cheap problem, and cut."""
    settings = _resolve(settings)
    if not settings.source.path:
        raise SettingsError("source.path: required; a folder, glob or URL of Parquet files")
    pins = _source_pins(settings, before)
    files = _read_footers(settings, pinned_path(settings.source.path, pins))
    schema = unify_schemas((file.path, file.schema) for file in files)
    documents = sum(rows for file in files for rows, _ in file.groups)
    if not documents:
        raise InputError("no rows in any of its files", path=settings.source.path)
    problems = [*_column_problems(settings, schema), *_budget_problems(settings, documents)]
    for score in settings.scores:
        if score.kind == "file":
            try:
                pins[f"scores:{score.name}"] = _digest_files(score.path, settings.plan.digest)
            except DatamaskError as error:
                problems.append(error)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        only_settings = all(isinstance(problem, SettingsError) for problem in problems)
        kind = SettingsError if only_settings else InputError
        raise kind("; ".join(str(problem) for problem in problems))
    pins |= _embedding_pins(settings, before)
    size = sum(file.size for file in files)
    pieces = cut(files, settings.plan.rows_per_shard, settings.plan.bytes_per_shard)
    disk = _disk_needed(settings, documents, size)
    return PlanPreview(settings, pins, len(files), pieces, documents, size, disk, schema)


def _resolve(settings: Settings) -> Settings:
    """Make paths absolute, so that a run can be continued from any folder."""
    source = settings.source.model_copy(update={"path": resolve_path(settings.source.path)})
    scores = tuple(
        score.model_copy(update={"path": resolve_path(score.path)})
        for score in settings.quality.scores
    )
    quality = settings.quality.model_copy(update={"scores": scores})
    return settings.model_copy(update={"source": source, "quality": quality})


def _source_pins(settings: Settings, before: Run | None) -> dict[str, str]:
    """The source's commit: as planned, for a planned folder; a moved branch is not a change."""
    if before is not None and before.settings.source.path == settings.source.path:
        return {key: pin for key, pin in before.pins.items() if key == "scores:source"}
    return pin_source(settings.source)


def _embedding_pins(settings: Settings, before: Run | None) -> dict[str, str]:
    if settings.source.layout == "features":
        return {}
    model = settings.embedding
    if before is not None and not Path(model.model).exists():
        was = before.settings.embedding
        pins = {k: pin for k, pin in before.pins.items() if k.startswith("embeddings:")}
        key = (model.method, model.model, model.revision)
        if pins and key == (was.method, was.model, was.revision):
            return pins
    from datamask.embedding.pinning import pin_model

    return dict(pin_model(model))


def _read_footers(settings: Settings, path: str) -> list[SourceFile]:
    def read(path: str) -> SourceFile:
        digest, size = digest_file(path, settings.plan.digest)
        with open_parquet(path) as file:
            groups = (file.metadata.row_group(i) for i in range(file.num_row_groups))
            counts = tuple((group.num_rows, group.total_byte_size) for group in groups)
            return SourceFile(path, size, digest, counts, plain_schema(file.schema_arrow))

    with ThreadPoolExecutor(16 if is_remote(path) else 2) as pool:
        return list(pool.map(read, list_files(path)))


def digest_file(path: str, how: str) -> tuple[str, int]:
    """What identifies a file, and its size in bytes.

    Args:
        path: local or URL.
        how: `content` hashes every byte; `footer` a Parquet file's size and footer, which holds
            the place, size and statistics of every column chunk.

    Raises:
        InputError: it is not a Parquet file (`footer`), or not there.
    """
    with open_binary(path) as file:
        size = file.seek(0, 2)
        if how == "content":
            file.seek(0)
            return hashlib.file_digest(file, "sha256").hexdigest()[:32], size
        file.seek(max(0, size - 8))
        tail = file.read(8)
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != b"PAR1" or length + 12 > size:
            raise InputError("truncated, or not a Parquet file; replace it", path=path)
        file.seek(size - 8 - length)
        return hashlib.sha256(f"{size}/".encode() + file.read(length)).hexdigest()[:32], size


def _digest_files(path: str, how: str) -> str:
    whole = hashlib.sha256()
    for name in list_files(path, SCORE_SUFFIXES):
        digest, _ = digest_file(name, how if name.lower().endswith(".parquet") else "content")
        whole.update(f"{name}\0{digest}\n".encode())
    return whole.hexdigest()[:32]


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def is_numeric(kind: pa.DataType) -> bool:
    """Whether a column of this type can be a score. A column without any value can."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_null(kind)
    )


def _column_problems(settings: Settings, schema: pa.Schema) -> Iterator[DatamaskError]:
    source = settings.source
    columns, place = source.columns, source.path

    def kind_of(column: str, key: str) -> pa.DataType | InputError:
        if schema.names.count(column) == 1:
            return schema.field(column).type
        many = "twice in the source" if column in schema.names else "absent from the source"
        known = ", ".join(schema.names)
        return InputError(f"{many}; set {key} to one of: {known}", path=place, column=column)

    def check(column: str, key: str, fits: Any, needed: str) -> Iterator[DatamaskError]:
        kind = kind_of(column, key)
        if isinstance(kind, InputError):
            yield kind
        elif not fits(kind):
            yield InputError(f"type {kind}, needed {needed} ({key})", path=place, column=column)

    def is_id(kind: pa.DataType) -> bool:
        return _is_text(kind) or bool(pa.types.is_integer(kind))

    id_key = "id" if source.layout == "documents" else "chunk_id"
    yield from check(source.id_column, f"source.columns.{id_key}", is_id, "text or integer")
    if source.layout == "documents":
        yield from check(columns.text, "source.columns.text", _is_text, "text")
        if columns.token_count in schema.names:
            key = "source.columns.token_count"
            yield from check(columns.token_count, key, is_numeric, "a number")
    else:
        yield from _feature_problems(settings, kind_of)
    for index, score in enumerate(settings.scores):
        if score.kind == "column":
            key = f"quality.scores.{index}.column"
            yield from check(score.column, key, is_numeric, "a number")
        if score.kind == "heuristic" and source.layout == "features":
            yield SettingsError(
                f"quality.scores.{index}.kind: heuristic needs text; layout `features` has none"
            )


def _feature_problems(settings: Settings, kind_of: Any) -> Iterator[DatamaskError]:
    column = settings.source.columns.feature_arr
    kind = kind_of(column, "source.columns.feature_arr")
    if isinstance(kind, InputError):
        yield kind
        return
    place, width = settings.source.path, settings.embedding.dimension
    is_fixed = pa.types.is_fixed_size_list(kind)
    is_list = is_fixed or pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not (is_list and pa.types.is_floating(kind.value_type)):
        yield InputError(f"type {kind}, needed a list of floats", path=place, column=column)
    elif is_fixed and kind.list_size != width:
        yield InputError(
            f"{kind.list_size} numbers wide; set embedding.dimension ({width}) to that",
            path=place,
            column=column,
        )


def _budget_problems(settings: Settings, documents: int) -> Iterator[DatamaskError]:
    try:
        total = budget.total_budget(settings.selection, documents)
    except SettingsError as error:
        yield error
        return
    left = documents - int(Fraction(str(settings.prune)) * documents)
    if total > left:
        yield SettingsError(
            f"selection.ratio: {total} documents are to be kept, but quality.prune "
            f"{settings.prune} leaves at most {left} of {documents}"
        )


def _disk_needed(settings: Settings, documents: int, size: int) -> dict[str, int]:
    left = documents - int(Fraction(str(settings.prune)) * documents)
    total = budget.total_budget(settings.selection, documents)
    return {
        "scores": SCORES_BYTES * documents,
        "quality": QUALITY_BYTES * documents,
        "embeddings": 2 * settings.embedding.dimension * left,
        "masks": MASK_BYTES * left,
        "subset": size * total // documents,
    }


def _check_room(root: Path, disk: dict[str, int]) -> None:
    place = root.absolute()
    while not place.exists():
        place = place.parent
    free, needed = shutil.disk_usage(place).free, sum(disk.values())
    if free < needed:
        raise RunError(
            f"{root}: about {needed / 2**30:.1f} GiB needed, {free / 2**30:.1f} GiB free; use "
            "another disk, a larger quality.prune or a smaller selection.ratio"
        )


def _check_same_cut(before: Run, found: PlanPreview) -> None:
    if before.pieces == found.pieces:
        return
    was, now = before.settings, found.settings
    pairs = [
        ("source.path", was.source.path, now.source.path),
        *((f"plan.{key}", getattr(was.plan, key), getattr(now.plan, key)) for key in _plan_keys()),
    ]
    changed = [f"{key} ({old!r}, now {new!r})" for key, old, new in pairs if old != new]
    if changed:
        raise RunError(
            f"{before.root}: planned with another {', '.join(changed)}; set it back, or use "
            "another folder"
        )
    old_files = {piece.path: piece.digest for piece in before.pieces}
    new_files = {piece.path: piece.digest for piece in found.pieces}
    notes = [f"{path} was removed" for path in old_files if path not in new_files]
    notes += [f"{path} was added" for path in new_files if path not in old_files]
    both = (path for path in old_files if path in new_files)
    notes += [f"{path} has changed" for path in both if old_files[path] != new_files[path]]
    more = f" (and {len(notes) - 3} more)" if len(notes) > 3 else ""
    raise RunError(
        f"{before.root}: the input is not what was planned: {', '.join(notes[:3])}{more}; restore "
        "it, or use another folder"
    )


def _plan_keys() -> tuple[str, ...]:
    return ("rows_per_shard", "bytes_per_shard", "digest")


def check_ids(root: Path, pieces: Iterable[Piece], column: str, compute: Compute) -> None:
    """Check that no document's id is absent and that all differ, in DuckDB, out of core.

    Args:
        root: the run's folder; DuckDB spills there.
        pieces: the plan; names the files.
        column: the id column.
        compute: DuckDB's memory and threads.

    Raises:
        InputError: naming the file and row of an absent id, or repeated ids with their counts.
    """
    import duckdb

    paths = list(dict.fromkeys(piece.path for piece in pieces))
    kept: list[DatamaskError] = []
    with tempfile.TemporaryDirectory(prefix=".duckdb-", dir=root) as spill:
        options = {
            "memory_limit": compute.duckdb_memory,
            "threads": compute.duckdb_threads,
            "temp_directory": spill,
        }
        with duckdb.connect(":memory:", config=options) as connection:
            try:
                _ids_table(connection, _read_ids(paths, column, kept))
                counts = (
                    "CREATE TEMP TABLE repeated AS "
                    "SELECT id, count(*) AS n FROM ids GROUP BY id HAVING n > 1"
                )
                connection.execute(counts).fetchall()
                total = connection.execute("SELECT count(*) FROM repeated").fetchall()[0][0]
                if not total:
                    return
                examples = connection.execute(
                    "SELECT i.id, any_value(r.n), list_sort(list(DISTINCT i.file)) FROM ids i "
                    "JOIN (FROM repeated ORDER BY id LIMIT 3) r ON i.id = r.id "
                    "GROUP BY i.id ORDER BY i.id"
                ).fetchall()
            except duckdb.Error:
                if kept:
                    raise kept[0] from None
                raise
    shown = "; ".join(
        f"{key!r} {count} times in {', '.join(paths[file] for file in files[:3])}"
        for key, count, files in examples
    )
    raise InputError(
        f"{total} ids are not unique ({shown}); make every id occur once", column=column
    )


_IDS = pa.schema([("id", pa.string()), ("file", pa.int32())])


def _ids_table(connection: Any, batches: Iterator[pa.RecordBatch]) -> None:
    reader = pa.RecordBatchReader.from_batches(_IDS, batches)
    connection.register("arriving", reader)
    connection.execute("CREATE TEMP TABLE ids AS SELECT id, file FROM arriving").fetchall()
    connection.unregister("arriving")


def _read_ids(paths: list[str], column: str, kept: list[DatamaskError]) -> Iterator[pa.RecordBatch]:
    """Ids as text with their file's number. Errors are kept: DuckDB would replace their type."""
    try:
        for number, path in enumerate(paths):
            row = 0
            with open_parquet(path) as file:
                for batch in file.iter_batches(batch_size=2**16, columns=[column]):
                    ids = batch.column(0).cast(pa.string())
                    if ids.null_count:
                        row += pc.index(ids.is_null(), True).as_py()
                        raise InputError("null; give it an id", path=path, row=row, column=column)
                    row += len(ids)
                    files = pa.repeat(pa.scalar(number, pa.int32()), len(ids))
                    yield pa.RecordBatch.from_arrays([ids, files], schema=_IDS)
    except DatamaskError as error:
        kept.append(error)
        raise
