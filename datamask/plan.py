"""Cut the source into shards, once, and refuse to go on when it has changed since.

The plan is a pure function of the input files and the settings: shards are ranges of row groups,
bounded in rows and bytes, whatever the files' sizes. Everything that can be wrong with the input
and is cheap to see is looked for here, before anything expensive, and reported together: columns,
types, ids, scores and score files, budget, objective, model, rights, and room on the disk.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from datamask import budget, locks, schemas
from datamask.config import Compute, Settings
from datamask.dumps import count_dumps
from datamask.errors import DatamaskError, InputError, RunError, SettingsError, together
from datamask.footers import SourceFile, digest_files, read_footers
from datamask.hub_access import check_access
from datamask.requirements import (
    budget_problems,
    column_problems,
    objective_problems,
    token_problems,
)
from datamask.row_checks import check_rows
from datamask.run_folder import Root, address_of, locate, remote_folder
from datamask.sources import (
    SCHEMA_KEY,
    is_remote,
    pin_source,
    pinned_path,
    resolve_path,
    unify_schemas,
)
from datamask.stages import STAGES
from datamask.store import (
    DUMPS_KEY,
    Piece,
    Run,
    create_run,
    digest,
    open_run,
    run_exists,
    write_parquet,
)

MADE_FOR_KEY = b"datamask-made-for"
"""Where plan.parquet keeps the digest of the settings that its rows were checked with."""

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
        unfit_columns: columns that something is wrong with.
    """

    settings: Settings
    pins: dict[str, str]
    files: int
    pieces: tuple[Piece, ...]
    documents: int
    bytes: int
    disk: dict[str, int]
    schema: pa.Schema
    unfit_columns: frozenset[str] = frozenset()

    @property
    def num_shards(self) -> int:
        """Number of shards."""
        return self.pieces[-1].shard + 1 if self.pieces else 0


Change = Callable[[Settings | None], Settings]
"""Makes the settings asked for from those that the run has; from None where there is no run."""


def plan_run(
    root: Root,
    settings: Settings | Change | None,
    compute: Compute | None = None,
    *,
    publishing: bool = True,
    origin: Run | None = None,
    checks: Iterable[Callable[[], object]] = (),
) -> Run:
    """Check the input, cut it into shards and write plan.parquet and run.json.

    A folder that is planned already keeps its plan; new settings that do not change the cut are
    taken over and make the outputs that depend on them stale. Nothing is written if anything is
    wrong. run.json is read once, under the lock under which it is written.

    Args:
        root: the run's folder, or its URL.
        settings: what to make, or how that follows from the run's own settings; None: as in
            run.json.
        compute: memory of the check of ids and scores.
        publishing: whether the Hub is asked if the token may publish, where settings say so.
        origin: another run, whose settings, pins and plan a new one starts from.
        checks: what else is looked at first; what they raise is reported with the rest.

    Raises:
        SettingsError: a setting does not fit the source.
        InputError: the source breaks the contract; all problems are named at once.
        RunError: the folder's plan is of another input or another cut, the disk is too small, or
            settings are to change while somebody works in the run.
    """
    compute = compute or Compute()
    root = locate(root)
    place = _nearest(root)
    if not place.is_dir():
        raise RunError(f"{root}: {place} is a file; name a folder, or one that is not there yet")
    if settings is None and origin is None:
        open_run(root)
    is_new = not root.exists()
    try:
        with locks.settings(root):
            before = open_run(root) if run_exists(root) else None
            known = before or origin
            if settings is None:
                settings = (known or open_run(root)).settings
            elif callable(settings):
                settings = settings(known.settings if known else None)
            found, problems = _examine(settings, known, publishing=publishing)
            for check in checks:
                with _gathering(problems):
                    check()
            return _write(root, found, problems, compute, before, origin)
    except BaseException:
        if is_new:
            with contextlib.suppress(OSError):
                (root / "locks").rmdir()
                root.rmdir()
        raise


def _write(
    root: Path,
    found: PlanPreview,
    problems: list[DatamaskError],
    compute: Compute,
    before: Run | None,
    origin: Run | None,
) -> Run:
    """Write what is not there yet, unless there are problems."""
    run = Run(root, found.settings, found.pins)
    problems += _place_problems(root, found)
    if before is not None and before.plan_path.exists():
        problems = [*_cut_problems(before, found), *problems]
        if problems:
            raise together(problems)
        _check_same_input(before, found)
        is_planned = is_checked = _is_plan_for(run, before)
        if is_planned and (before.settings, before.pins) == (run.settings, run.pins):
            return create_run(root, run.settings, run.pins)
    else:
        problems += _room_problems(root, found.disk)
        is_planned = False
        is_checked = origin is not None and _is_plan_for(run, origin)
        is_checked = is_checked and origin is not None and origin.pieces == found.pieces
    with locks.alone(root):
        if not is_checked:
            problems += _row_problems(root, found, compute)
        if problems:
            raise together(problems)
        if not is_planned:
            _write_plan(run, found)
        return create_run(root, run.settings, run.pins)


def _is_plan_for(run: Run, planned: Run) -> bool:
    """Whether a run's plan was made, and its rows were checked, for the settings of *run*."""
    if not planned.plan_path.exists():
        return False
    metadata = pq.read_metadata(planned.plan_path).metadata or {}
    return bool(metadata.get(MADE_FOR_KEY, b"") == digest(_rows_matter(run)).encode())


def _rows_matter(run: Run) -> Any:
    """What `check_rows` depends on, beside the source."""
    pins = {key: pin for key, pin in run.pins.items() if key.startswith("scores:")}
    columns = run.settings.source.columns
    width = run.settings.embedding.dimension
    return run.settings.source.layout, columns, run.settings.scores, width, pins


def _row_problems(root: Path, found: PlanPreview, compute: Compute) -> list[DatamaskError]:
    """Problems in the rows of those files whose columns can be read."""
    problems: list[DatamaskError] = []
    if found.settings.source.id_column not in found.unfit_columns:
        with _gathering(problems):
            paths = (piece.path for piece in found.pieces)
            named = [s.name for s in found.settings.scores if f"scores:{s.name}" in found.pins]
            problems += check_rows(root, paths, found.settings, compute, named)
    return problems


def _write_plan(run: Run, found: PlanPreview) -> None:
    encoded = found.schema.serialize().to_pybytes().hex()
    dumps = count_dumps(found.pieces, found.settings.source.columns.dump, found.schema)
    made_for = digest(_rows_matter(run))
    notes = {SCHEMA_KEY: encoded, DUMPS_KEY: json.dumps(dumps), MADE_FOR_KEY: made_for}
    schema = schemas.PLAN.with_metadata(notes)
    table = pa.Table.from_pylist([asdict(piece) for piece in found.pieces], schema=schema)
    write_parquet(run.plan_path, schema, [table], root=run.root)


def examine(settings: Settings) -> tuple[PlanPreview, list[DatamaskError]]:
    """What `plan_run` would do, as far as it is known, and the problems of all its cheap checks."""
    return _examine(settings, None, publishing=True)


def preview(settings: Settings) -> PlanPreview:
    """What `plan_run` would do, with all its cheap checks and without writing anything.

    Raises:
        SettingsError: a setting does not fit the source.
        InputError: the source breaks the contract.
    """
    found, problems = examine(settings)
    if problems:
        raise together(problems)
    return found


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


def _examine(
    settings: Settings, before: Run | None, *, publishing: bool
) -> tuple[PlanPreview, list[DatamaskError]]:
    """Resolve the settings, read every footer, cut, and gather every cheap problem."""
    settings = _resolve(settings)
    problems: list[DatamaskError] = []
    pins: dict[str, str] = {}
    files: list[SourceFile] = []
    schema = pa.schema([])

    with _gathering(problems):
        if not settings.source.path:
            raise SettingsError("source.path: required; a folder, glob or URL of Parquet files")
        pins |= _source_pins(settings, before)
        path = pinned_path(settings.source.path, pins)
        files, unreadable = read_footers(path, settings.plan.digest)
        problems += unreadable
    are_all = bool(files) and not problems
    if files:
        schema = files[0].schema
        with _gathering(problems):
            schema = unify_schemas((file.path, file.schema) for file in files)
        named = {getattr(problem, "column", None) for problem in problems}
        found = column_problems(settings, schema)
        problems += [p for p in found if getattr(p, "column", "") not in named]
        problems += token_problems(settings, schema)
    documents = sum(rows for file in files for rows, _ in file.groups)
    if are_all and not documents:
        problem = "no rows in any of its files; check the path"
        problems.append(InputError(problem, path=settings.source.path))
    budgeting = list(budget_problems(settings, documents)) if documents and are_all else []
    problems += budgeting
    problems += objective_problems(settings)
    for score in settings.scores:
        if score.kind == "file":
            with _gathering(problems):
                pins[f"scores:{score.name}"] = digest_files(score.path, settings.plan.digest)
    if publishing and settings.publication is not None:
        with _gathering(problems):
            check_access(settings.publication)
    with _gathering(problems):
        pins |= _embedding_pins(settings, before)
    if settings.source.tokenizer and settings.source.columns.token_count not in schema.names:
        with _gathering(problems):
            from datamask.quality.token_counts import tokenizer_digest

            pins["scores:tokenizer"] = tokenizer_digest(settings.source.tokenizer)
    pieces = cut(files, settings.plan.rows_per_shard, settings.plan.bytes_per_shard)
    size = sum(file.size for file in files)
    is_known = documents and are_all and not budgeting
    disk = _disk_needed(settings, documents, size) if is_known else {}
    unfit = {problem.column for problem in problems if isinstance(problem, InputError)}
    return (
        PlanPreview(
            settings,
            pins,
            len(files),
            pieces,
            documents,
            size,
            disk,
            schema,
            frozenset(column for column in unfit if column is not None),
        ),
        problems,
    )


@contextlib.contextmanager
def _gathering(problems: list[DatamaskError]) -> Iterator[None]:
    """Keep what goes wrong in the block, so that the next check is made all the same."""
    try:
        yield
    except DatamaskError as error:
        problems += error.problems


def _resolve(settings: Settings) -> Settings:
    """Make paths absolute, so that a run can be continued from any folder."""
    tokenizer = settings.source.tokenizer
    if tokenizer and Path(tokenizer).exists():
        tokenizer = resolve_path(tokenizer)
    places = {"path": resolve_path(settings.source.path), "tokenizer": tokenizer}
    source = settings.source.model_copy(update=places)
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
    total = budget.expected_documents(settings.selection, documents, size)
    return {
        "scores": SCORES_BYTES * documents,
        "quality": QUALITY_BYTES * documents,
        "embeddings": 2 * settings.embedding.dimension * left,
        "masks": MASK_BYTES * left,
        "subset": size * total // documents,
    }


def _place_problems(root: Path, found: PlanPreview) -> Iterator[RunError]:
    """Whether the run's own files can be read, and are not found as its input next time."""
    paths = {"source.path": found.settings.source.path}
    for index, score in enumerate(found.settings.scores):
        if score.kind == "file":
            paths[f"quality.scores.{index}.path"] = score.path
    address = address_of(root)
    home = address.split("/") if is_remote(address) else list(root.resolve().parts)
    for key, path in paths.items():
        if not path or "\0" in path:
            continue  # what is wrong with it was noted when it was listed
        pattern = _pattern(path)
        if any(_matches(pattern, [*home, *output]) for output in _OUTPUTS):
            yield RunError(
                f"{address}: inside {key} ({path}), where its files would count as input; use a "
                "folder elsewhere"
            )


_OUTPUTS = [
    ("plan.parquet",),
    *((folder, "**") for folder in ("curves", "report", "sweep", "publication")),
    *(stage.file.split("/") if stage.file else (name, "**") for name, stage in STAGES.items()),
]
"""What a run writes, below its folder; `**` is any file."""


def _pattern(path: str) -> list[str]:
    """A path of the settings as the parts of a glob; `**` stands for the files of a folder."""
    if is_remote(path):
        parts = path.rstrip("/").split("/")
        return parts if glob.has_magic(path) else [*parts, "**"]
    parts = list(Path(path).parts)
    # A listing follows links before the first wildcard, and none after it.
    static = len(parts)
    if not os.path.exists(path):
        static = next((place for place, part in enumerate(parts) if glob.has_magic(part)), static)
    resolved = Path(os.path.realpath(Path(*parts[:static]))).parts
    rest = ["**"] if os.path.isdir(path) else parts[static:]
    return [*map(glob.escape, resolved), *rest]


def _matches(pattern: list[str], path: list[str]) -> bool:
    """Whether a glob matches a path; if the path ends with `**`, any file below the rest of it."""
    if not path or not pattern:
        return not path and all(part == "**" for part in pattern)
    if path[0] == "**":
        return True
    if pattern[0] == "**":
        return _matches(pattern[1:], path) or _matches(pattern, path[1:])
    return fnmatch.fnmatchcase(path[0], pattern[0]) and _matches(pattern[1:], path[1:])


def _nearest(root: Path) -> Path:
    """The run's folder, or the nearest above it that is there."""
    place = root.absolute()
    while not place.exists():
        place = place.parent
    return place


def _room_problems(root: Path, disk: dict[str, int]) -> Iterator[RunError]:
    free, needed = shutil.disk_usage(_nearest(root)).free, sum(disk.values())
    if free < needed and remote_folder(root) is None:
        yield RunError(
            f"{root}: about {needed / 2**30:.1f} GiB needed, {free / 2**30:.1f} GiB free; use "
            "another disk, a larger quality.prune or a smaller selection.ratio"
        )


def _cut_problems(before: Run, found: PlanPreview) -> Iterator[RunError]:
    """Whether settings that a plan is bound to were changed, and the cut with them."""
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
        yield RunError(
            f"{before.address}: planned with another {', '.join(changed)}; set it back, or use "
            "another folder"
        )


def _check_same_input(before: Run, found: PlanPreview) -> None:
    if before.pieces == found.pieces:
        return
    old_files = {piece.path: piece.digest for piece in before.pieces}
    new_files = {piece.path: piece.digest for piece in found.pieces}
    notes = [f"{path} was removed" for path in old_files if path not in new_files]
    notes += [f"{path} was added" for path in new_files if path not in old_files]
    both = (path for path in old_files if path in new_files)
    notes += [f"{path} has changed" for path in both if old_files[path] != new_files[path]]
    more = f" (and {len(notes) - 3} more)" if len(notes) > 3 else ""
    raise RunError(
        f"{before.address}: the input is not what was planned: {', '.join(notes[:3])}{more}; "
        "restore it, or use another folder"
    )
