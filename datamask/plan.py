"""Cut the source into shards, once, and refuse to go on when it has changed since.

The plan is a pure function of the input files and the settings: shards are ranges of row groups,
bounded in rows and bytes, whatever the files' sizes. Everything that can be wrong with the input
and is cheap to see is looked for here, before anything expensive, and reported together: columns,
types, score files, budget, room on the disk, and ids that are absent or not unique.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path

import pyarrow as pa

from datamask import budget, locks, schemas
from datamask.config import Compute, Settings
from datamask.errors import DatamaskError, InputError, RunError, SettingsError
from datamask.footers import SourceFile, digest_files, read_footers
from datamask.hub_access import check_access
from datamask.identifiers import check_ids
from datamask.requirements import budget_problems, column_problems, objective_problems
from datamask.sources import SCHEMA_KEY, pin_source, pinned_path, resolve_path, unify_schemas
from datamask.store import Piece, Run, create_run, open_run, write_parquet

SCORES_BYTES, QUALITY_BYTES, MASK_BYTES = 100, 60, 40
"""Estimated bytes on disk of one document in `scores/`, `quality/` and `masks/`."""


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


def plan_run(
    root: Path, settings: Settings, compute: Compute | None = None, *, publishing: bool = True
) -> Run:
    """Check the input, cut it into shards and write plan.parquet and run.json.

    A folder that is planned already keeps its plan; new settings that do not change the cut are
    taken over and make the outputs that depend on them stale.

    Args:
        root: the run's folder.
        settings: what to make.
        compute: memory of the check for unique ids.
        publishing: whether the Hub is asked if the token may publish, where settings say so.

    Raises:
        SettingsError: a setting does not fit the source.
        InputError: the source breaks the contract; all cheap problems are named at once.
        RunError: the folder's plan is of another input or another cut, or the disk is too small.
    """
    compute = compute or Compute()
    before = open_run(root) if (root / "run.json").exists() else None
    found = _examine(settings, before, publishing=publishing)
    if before is not None and before.plan_path.exists():
        _check_same_cut(before, found)
        if (before.settings, before.pins) == (found.settings, found.pins):
            return create_run(root, found.settings, found.pins)
        with locks.alone(root):
            if before.settings.source.id_column != found.settings.source.id_column:
                check_ids(root, found.pieces, found.settings.source.id_column, compute)
            return create_run(root, found.settings, found.pins)
    _check_room(root, found.disk)
    root.mkdir(parents=True, exist_ok=True)
    with locks.alone(root):
        return _write_plan(root, found, compute)


def _write_plan(root: Path, found: PlanPreview, compute: Compute) -> Run:
    check_ids(root, found.pieces, found.settings.source.id_column, compute)
    encoded = found.schema.serialize().to_pybytes().hex()
    schema = schemas.PLAN.with_metadata({SCHEMA_KEY: encoded})
    table = pa.Table.from_pylist([asdict(piece) for piece in found.pieces], schema=schema)
    write_parquet(root / "plan.parquet", schema, [table], root=root)
    return create_run(root, found.settings, found.pins)


def preview(settings: Settings) -> PlanPreview:
    """What `plan_run` would do, with all its cheap checks and without writing anything.

    Raises:
        SettingsError: a setting does not fit the source.
        InputError: the source breaks the contract.
    """
    return _examine(settings, None, publishing=True)


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


def _examine(settings: Settings, before: Run | None, *, publishing: bool) -> PlanPreview:
    """Resolve the settings, read every footer, look for every cheap problem, and cut."""
    settings = _resolve(settings)
    if not settings.source.path:
        raise SettingsError("source.path: required; a folder, glob or URL of Parquet files")
    pins = _source_pins(settings, before)
    files = read_footers(pinned_path(settings.source.path, pins), settings.plan.digest)
    schema = unify_schemas((file.path, file.schema) for file in files)
    documents = sum(rows for file in files for rows, _ in file.groups)
    if not documents:
        raise InputError("no rows in any of its files", path=settings.source.path)
    problems = [
        *column_problems(settings, schema),
        *budget_problems(settings, documents),
        *objective_problems(settings),
    ]
    for score in settings.scores:
        if score.kind == "file":
            try:
                pins[f"scores:{score.name}"] = digest_files(score.path, settings.plan.digest)
            except DatamaskError as error:
                problems.append(error)
    if publishing and settings.publication is not None:
        try:
            check_access(settings.publication)
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
    embedding = settings.embedding
    if Path(embedding.model).is_dir():
        embedding = embedding.model_copy(update={"model": resolve_path(embedding.model)})
    changes = {"source": source, "quality": quality, "embedding": embedding}
    return settings.model_copy(update=changes)


def _source_pins(settings: Settings, before: Run | None) -> dict[str, str]:
    """The source's commit: as planned, for a planned folder; a moved branch is not a change."""
    if before is not None and before.settings.source.path == settings.source.path:
        return {key: pin for key, pin in before.pins.items() if key == "scores:source"}
    return pin_source(settings.source)


def _embedding_pins(settings: Settings, before: Run | None) -> dict[str, str]:
    """What identifies the model; a Hub model keeps the commit it was planned with."""
    if settings.source.layout == "features":
        return {}
    model = settings.embedding
    on_hub = model.method == "sentence-transformer" and not Path(model.model).exists()
    if before is not None and on_hub:
        was = before.settings.embedding
        pins = {key: pin for key, pin in before.pins.items() if key.startswith("embeddings:")}
        now_key = (model.method, model.model, model.revision)
        if pins and now_key == (was.method, was.model, was.revision):
            return pins
    from datamask.embedding.pinning import pin_model

    return dict(pin_model(model))


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
        ("plan.rows_per_shard", was.plan.rows_per_shard, now.plan.rows_per_shard),
        ("plan.bytes_per_shard", was.plan.bytes_per_shard, now.plan.bytes_per_shard),
        ("plan.digest", was.plan.digest, now.plan.digest),
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
