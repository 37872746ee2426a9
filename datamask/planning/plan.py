"""Cut the source into shards, once, and refuse to continue if the source has changed since.

The plan is a pure function of the input files and the settings: shards are ranges of row groups,
bounded in rows and bytes. All cheap checks run here, before any expensive work, and their problems
are reported together: columns, types, ids, scores and score files, budget, objective, model,
permissions, and disk space.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shlex
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from datamask.config.compute import Compute
from datamask.config.settings import Settings
from datamask.errors import DatamaskError, RunError, gathering, together
from datamask.evaluation.models import training_explained
from datamask.planning.preflight_folder import check_folder, folder_problems, room_problems
from datamask.planning.preflight_rows import check_rows
from datamask.planning.preview import Convert, PlanPreview, examine, stable_path
from datamask.publishing.access import check_access
from datamask.quality.counts import known_problems
from datamask.runs import locks, schemas
from datamask.runs.files import write_parquet
from datamask.runs.opening import create_run, open_run, run_exists, run_storage
from datamask.runs.run import Run, digest
from datamask.runs.schemas import Piece
from datamask.runs.stages import stages_of
from datamask.runs.subset_files import DUMPS_KEY
from datamask.source.convert import convert, share_copies
from datamask.source.opening import check_on_record, is_remote
from datamask.source.originals import FOLDER, NOTE, at_original
from datamask.source.reading import SCHEMA_KEY
from datamask.storage.local import Storage
from datamask.storage.location import Root

logger = logging.getLogger(__name__)

MADE_FOR_KEY = b"datamask-made-for"
"""Key in plan.parquet of the digest of the settings that its rows were checked with."""

Change = Callable[[Settings | None], Settings]
"""Makes the new settings from the run's settings; gets None if there is no run."""


def plan_run(
    root: Root,
    settings: Settings | Change | None,
    compute: Compute | None = None,
    *,
    publishing: bool = True,
    origin: Run | None = None,
    extend: bool = False,
    checks: Iterable[Callable[[], object]] = (),
) -> Run:
    """Check the input, cut it into shards and write plan.parquet and run.json.

    A planned run keeps its shards. With *extend*, files that were added to its source become
    further shards. New settings that do not change the cut make the outputs that depend on them
    stale. Nothing is written if there is a problem. run.json is read once, under the lock that
    protects its writing.

    Args:
        root: the run's folder or URL.
        settings: the new settings, or a function of the run's own; None: as in run.json.
        compute: memory for the check of ids and scores.
        publishing: if True and the settings publish, ask the Hub if the token may publish.
        origin: another run, whose settings, pinned revisions and shards a new one starts from.
        extend: if True, the source of a planned run may have more files than were planned.
        checks: further checks; the errors that they raise are reported with the others.

    Raises:
        SettingsError: a setting does not fit the source.
        InputError: the source breaks the contract.
        RunError: the plan has another input or cut, the disk is too small, or settings would
            change while another process works in the run.
    """
    compute = compute or Compute()
    storage = run_storage(root)
    check_folder(storage)
    if extend or (settings is None and origin is None):
        open_run(root)
    is_new = not storage.root.exists()
    try:
        with locks.settings(storage):
            before = open_run(root) if run_exists(root) else None
            planned, known = _planned(before), before or origin
            own = known.settings if known else None
            settings = settings(own) if callable(settings) else settings or own
            assert settings is not None, "there is a run"
            if publishing and settings.publication and planned:
                # A finished publication needs neither the Hub nor a token.
                publishing = planned.settings != settings or planned.state("publication") != "done"
            if planned and not extend and not checks and _is_publication_alone(planned, settings):
                if publishing and settings.publication is not None:
                    check_access(settings.publication)
                with locks.alone(storage):
                    return create_run(storage.address, settings, planned.pinned_revisions)
            to_parquet = _conversion(known, storage, compute)
            plan = examine(
                settings, known, publishing=publishing, extend=extend, convert=to_parquet
            )
            for check in checks:
                with gathering(plan.problems):
                    check()
            run = _write(storage, plan, compute, planned, origin, extend)
    except BaseException:
        if is_new:
            with contextlib.suppress(OSError):
                (storage.root / "locks").rmdir()
                storage.root.rmdir()
        raise
    for line in (*run.settings.explained(), *training_explained(run.settings.evaluation)):
        logger.info("%s", line)
    return run


def _planned(run: Run | None) -> Run | None:
    """Return the run if it has a plan."""
    return run if run is not None and run.plan_path.exists() else None


def _is_publication_alone(planned: Run, settings: Settings) -> bool:
    """Return True if a finished run only publishes otherwise; its source does not matter then."""
    if planned.settings == settings:
        return False
    now = settings.model_copy(update={"publication": planned.settings.publication})
    stages = stages_of(planned.settings, last="report")
    return now == planned.settings and not any(planned.remaining(stage) for stage in stages)


def dry_run(root: Root, settings: Settings, compute: Compute) -> tuple[PlanPreview, bool]:
    """Return what `plan_run` would write, with problems, and True if rows were checked.

    Rows of a remote source are not read. Nothing but temporary files is written.
    """
    storage = run_storage(root)
    check_folder(storage)
    before = open_run(root) if run_exists(root) else None
    to_parquet = _conversion(before, storage, compute, may_write=False)
    plan = examine(settings, before, convert=to_parquet)
    if not _may_go_on(storage, plan, _planned(before), extend=False):
        return plan, False
    checked = _checked(plan, _planned(before), is_own=True)
    if checked is None and is_remote(plan.settings.source.path):
        return plan, False
    with tempfile.TemporaryDirectory() as folder:
        _check_rows(Path(folder), plan, compute, checked)
    return plan, True


def _conversion(
    known: Run | None, storage: Storage, compute: Compute, *, may_write: bool = True
) -> Convert:
    """Return a function that converts files to Parquet in the run's folder.

    The folder gets the copies of a known run of the source. A run within its own source is refused
    first.
    """

    def to_parquet(
        path: str, names: Sequence[str], settings: Settings
    ) -> tuple[list[str], dict[str, str]]:
        if problems := list(folder_problems(storage, settings)):
            raise together(problems)
        home, is_planned = storage, False
        if known is not None and known.settings.source.path == settings.source.path:
            is_planned = known.plan_path.exists()
            pieces = known.pieces if is_planned else ()
            folders = {piece.path.rpartition(f"/{FOLDER}/")[0] for piece in pieces}
            homes = map(run_storage, sorted(folders - {"", storage.address}))
            # A run that was moved or deleted has none there any more.
            other = next((other for other in homes if other.fetch(NOTE).exists()), None)
            if other is not None and not storage.fetch(NOTE).exists():
                if may_write:
                    share_copies(other, storage)
                else:
                    home = other
        may = {"may_write": may_write, "is_planned": is_planned}
        return convert(path, names, settings.source, home, compute, **may)

    return to_parquet


def _write(
    storage: Storage,
    plan: PlanPreview,
    compute: Compute,
    planned: Run | None,
    origin: Run | None,
    extend: bool,
) -> Run:
    """Write the plan, if it is new or grows, and run.json, unless there are problems."""
    if not _may_go_on(storage, plan, planned, extend=extend):
        raise together([*map(at_original, plan.problems)])
    checked = _checked(plan, planned or _planned(origin), is_own=planned is not None)
    now = (plan.settings, plan.pinned_revisions)
    if planned is not None and checked and (planned.settings, planned.pinned_revisions) == now:
        return create_run(storage.address, *now)
    with locks.alone(storage):
        dumps = _check_rows(storage.root, plan, compute, checked)
        if plan.problems:
            raise together([*map(at_original, plan.problems)])
        if planned is None or checked is None:
            _write_plan(Run(storage, *now), plan, dumps)
        return create_run(storage.address, *now)


def _may_go_on(storage: Storage, plan: PlanPreview, planned: Run | None, *, extend: bool) -> bool:
    """Add problems of folder, disk space and cut; return True if rows can be checked.

    They cannot if a planned run that keeps its shards has any problem.
    """
    problems, added = plan.problems, plan.documents
    problems += folder_problems(storage, plan.settings)
    if planned is not None:
        if not extend or planned.pieces == plan.pieces or not _continues(planned, plan):
            problems[:0] = _another_cut(planned, plan)
            return not problems
        added -= planned.num_documents
    needed = {name: of * added // plan.documents for name, of in plan.disk.items()}
    problems += room_problems(storage, needed)
    return True


def _checked(plan: PlanPreview, known: Run | None, *, is_own: bool) -> Run | None:
    """Return a planned run if it has this plan, and its rows were checked for the new settings.

    Unless it *is_own*, its copies of converted files are in another folder.
    """
    if known is None:
        return None
    is_same = _note(known, MADE_FOR_KEY) == _rows_matter(plan).encode()
    before, now = known.pieces, plan.pieces
    is_same &= before == now or (not is_own and _stable(before) == _stable(now))
    return known if is_same else None


def _stable(pieces: Iterable[Piece]) -> list[Piece]:
    """Return pieces whose paths depend neither on the run's place nor on the source's commit."""
    return [replace(piece, path=stable_path(piece.path)) for piece in pieces]


def _note(planned: Run, key: bytes) -> bytes:
    """Return the value that plan.parquet keeps under a key; empty if there is none."""
    return planned.plan_metadata.get(key, b"")


def _rows_matter(plan: PlanPreview) -> str:
    """Return the digest of the settings that `check_rows` reads, besides source and budget."""
    settings, of = plan.settings, plan.pinned_revisions
    stages = ("scores:", "file_scores:", "vector_places:")
    pinned_revisions = {key: of[key] for key in of if key.startswith(stages)}
    source, width = settings.source, settings.embedding.dimension
    own = [settings.vector_column, settings.embedding.id_column] if settings.vector_column else []
    return digest([source.layout, source.columns, settings.scores, width, pinned_revisions, *own])


def _check_rows(
    folder: Path, plan: PlanPreview, compute: Compute, checked: Run | None
) -> Sequence[Mapping[str, int]]:
    """Add problems in rows of files whose columns can be read, and of an impossible budget.

    *checked* is a run that has these rows, checked. DuckDB spills to *folder*. Returns the
    documents of each shard by dump; none if there are problems.
    """
    settings, selection, problems = plan.settings, plan.settings.selection, plan.problems
    if checked is not None:
        counted = [] if problems else _counted_problems(plan, compute, checked)
        if counted is not None or not (selection.limits or selection.needs_tokens):
            problems += counted or []
            dumps: list[dict[str, int]] = json.loads(_note(checked, DUMPS_KEY) or "[]")
            return dumps
    id_column = settings.source.id_column
    if all(getattr(problem, "column", None) != id_column for problem in problems):
        names, pins = [] if problems else plan.schema.names, plan.pinned_revisions
        with gathering(problems):
            in_rows, by_dump = check_rows(folder, plan.pieces, settings, compute, names, pins)
            problems += in_rows
            return by_dump
    return []


def _counted_problems(
    plan: PlanPreview, compute: Compute, checked: Run
) -> list[DatamaskError] | None:
    """Return problems of a new budget with a run's counts; None if it has not counted."""
    now = replace(checked, settings=plan.settings, pinned_revisions=plan.pinned_revisions)
    if checked.settings.selection == now.settings.selection and (
        checked.fingerprint("quality") == now.fingerprint("quality")
    ):
        return []
    return known_problems(now, compute)


def _write_plan(run: Run, plan: PlanPreview, dumps: Sequence[Mapping[str, int]]) -> None:
    encoded = plan.schema.serialize().to_pybytes().hex()
    notes = {SCHEMA_KEY: encoded, DUMPS_KEY: json.dumps(dumps), MADE_FOR_KEY: _rows_matter(plan)}
    schema = schemas.PLAN.with_metadata(notes)
    names = schema.names  # Compare column by column: there may be a million pieces.
    columns = {name: [getattr(piece, name) for piece in plan.pieces] for name in names}
    write_parquet(run.plan_path, schema, [pa.table(columns, schema)], storage=run.storage)


def _continues(before: Run, plan: PlanPreview) -> bool:
    """Return True if the plan begins with the shards of the run, perhaps at another commit."""
    both = (before.pieces, plan.pieces)
    planned, now = ([replace(piece, path="") for piece in pieces] for pieces in both)
    return now[: len(planned)] == planned


def _another_cut(before: Run, plan: PlanPreview) -> Iterator[RunError]:
    """Yield errors about settings, or else files, that give other shards than the run has."""
    if before.pieces == plan.pieces:
        return
    was, now = before.settings, plan.settings
    pairs = [("source.path", was.source.path, now.source.path)]
    pairs += [(f"plan.{key}", old, getattr(now.plan, key)) for key, old in was.plan]
    changed = [f"{key} ({old!r}, now {new!r})" for key, old, new in pairs if old != new]
    if changed:
        problem = f"planned with another {', '.join(changed)}; set it back, or use another folder"
        yield RunError(f"{before.address}: {problem}")
        return
    if not plan.disk:
        return  # Not all files were read, and the problems say why.
    if _stable(before.pieces) == _stable(plan.pieces):
        return  # Copies of converted files are in another folder.
    old_files, new_files = (
        {stable_path(piece.path): piece for piece in pieces}
        for pieces in (before.pieces, plan.pieces)
    )
    notes = [f"{old_files[key].path} was removed" for key in old_files.keys() - new_files.keys()]
    notes += [f"{new_files[key].path} was added" for key in new_files.keys() - old_files.keys()]
    both = old_files.keys() & new_files.keys()
    changed = [key for key in both if old_files[key].digest != new_files[key].digest]
    for key in changed:
        check_on_record(new_files[key].path)  # Damage to the footer of a copy looks like a change.
    notes += [f"{new_files[key].path} has changed" for key in changed]
    notes.sort()
    more = f" (and {len(notes) - 3:,} more)" if len(notes) > 3 else ""
    remedy = "use another folder"
    if _continues(before, plan):
        remedy = f"run `datamask extend {shlex.quote(before.address)}` to select from all files"
    yield RunError(
        f"{before.address}: the input is not what was planned: {', '.join(notes[:3])}{more}; "
        f"restore it, or {remedy}"
    )
