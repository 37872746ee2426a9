"""Cut the source into shards, once, and refuse to continue if the source has changed since.

The plan is a pure function of the input files and the settings: shards are ranges of row groups,
bounded in rows and bytes. All cheap checks run here, before any expensive work, and their problems
are reported together: columns, types, ids, scores and score files, budget, objective, model,
permissions, and disk space.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from datamask.config.compute import Compute
from datamask.config.settings import Settings
from datamask.errors import DatamaskError, RunError, gathering, together
from datamask.planning.preflight_place import place_problems, room_problems
from datamask.planning.preflight_rows import check_rows
from datamask.planning.preview import PlanPreview, examine
from datamask.runs import locks, schemas
from datamask.runs.files import write_parquet
from datamask.runs.opening import create_run, open_run, run_exists, run_storage
from datamask.runs.run import DUMPS_KEY, Run, digest
from datamask.source.dumps import count_dumps
from datamask.source.reading import SCHEMA_KEY
from datamask.storage.local import nearest_folder
from datamask.storage.location import Root
from datamask.storage.protocol import Storage

MADE_FOR_KEY = b"datamask-made-for"
"""Where plan.parquet keeps the digest of the settings that its rows were checked with."""

Change = Callable[[Settings | None], Settings]
"""Makes the new settings from those of the run; None if there is no run."""


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
        publishing: whether to ask the Hub if the token may publish, if the settings publish.
        origin: another run, whose settings, pinned revisions and shards a new one starts from.
        extend: whether the source of a planned run may have more files than were planned.
        checks: further checks; the errors that they raise are reported with the others.

    Raises:
        SettingsError: a setting does not fit the source.
        InputError: the source breaks the contract.
        RunError: the plan is of another input or cut, the disk is too small, or settings would
            change while another process works in the run.
    """
    compute = compute or Compute()
    storage = run_storage(root)
    place = nearest_folder(storage.root)
    if not place.is_dir():
        raise RunError(f"{root}: {place} is a file; name a folder, or one that is not there yet")
    if extend or (settings is None and origin is None):
        open_run(root)
    is_new = not storage.root.exists()
    try:
        with locks.settings(storage):
            before = open_run(root) if run_exists(root) else None
            known = before or origin
            if settings is None:
                settings = (known or open_run(root)).settings
            elif callable(settings):
                settings = settings(known.settings if known else None)
            found, problems = examine(settings, known, publishing=publishing, extend=extend)
            for check in checks:
                with gathering(problems):
                    check()
            return _write(storage, found, problems, compute, before, origin, extend)
    except BaseException:
        if is_new:
            with contextlib.suppress(OSError):
                (storage.root / "locks").rmdir()
                storage.root.rmdir()
        raise


def _write(
    storage: Storage,
    found: PlanPreview,
    problems: list[DatamaskError],
    compute: Compute,
    before: Run | None,
    origin: Run | None,
    extend: bool,
) -> Run:
    """Write the plan, if there is none yet or it grows, and run.json, unless there are problems."""
    run = Run(storage, found.settings, found.pinned_revisions)
    problems += place_problems(storage, found)
    if before is not None and before.plan_path.exists():
        grows = extend and before.pieces != found.pieces and _continues(before, found)
        if grows:
            added = found.documents - before.num_documents
            shares = {name: of * added // found.documents for name, of in found.disk.items()}
            problems += room_problems(storage, shares)
        else:
            problems = [*_cut_problems(before, found), *problems]
            if problems:
                raise together(problems)
            if before.pieces != found.pieces:
                _check_same_input(before, found)
        is_planned = is_checked = _is_checked(run, found, before)
        if is_planned and (before.settings, before.pinned_revisions) == (
            run.settings,
            run.pinned_revisions,
        ):
            return create_run(storage.address, run.settings, run.pinned_revisions)
    else:
        problems += room_problems(storage, found.disk)
        is_planned = False
        is_checked = origin is not None and _is_checked(run, found, origin)
    with locks.alone(storage):
        if not is_checked:
            problems += _row_problems(storage.root, found, problems, compute)
        if problems:
            raise together(problems)
        if not is_planned:
            _write_plan(run, found)
        return create_run(storage.address, run.settings, run.pinned_revisions)


def _is_checked(run: Run, found: PlanPreview, planned: Run) -> bool:
    """Whether *planned* has this plan, and its rows were checked for the settings of *run*."""
    if not planned.plan_path.exists():
        return False
    made_for = (pq.read_metadata(planned.plan_path).metadata or {}).get(MADE_FOR_KEY, b"")
    return made_for == digest(_rows_matter(run)).encode() and planned.pieces == found.pieces


def _rows_matter(run: Run) -> Any:
    """What `check_rows` depends on, besides the source."""
    settings, of = run.settings, run.pinned_revisions
    stages = ("scores:", "file_scores:")
    pinned_revisions = {key: of[key] for key in of if key.startswith(stages)}
    source, width = settings.source, settings.embedding.dimension
    return source.layout, source.columns, settings.scores, width, pinned_revisions


def _row_problems(
    root: Path, found: PlanPreview, known: list[DatamaskError], compute: Compute
) -> list[DatamaskError]:
    """Problems in the rows of those files whose columns can be read, if ids can."""
    problems: list[DatamaskError] = []
    id_column = found.settings.source.id_column
    if all(getattr(problem, "column", None) != id_column for problem in known):
        with gathering(problems):
            files = {piece.path: piece.digest for piece in found.pieces}
            pins = found.pinned_revisions.items()
            start = "file_scores:"
            scores = {key.removeprefix(start): of for key, of in pins if key.startswith(start)}
            problems += check_rows(root, files, found.settings, compute, scores)
    return problems


def _write_plan(run: Run, found: PlanPreview) -> None:
    encoded = found.schema.serialize().to_pybytes().hex()
    dumps = count_dumps(found.pieces, found.settings.source.columns.dump, found.schema)
    made_for = digest(_rows_matter(run))
    notes = {SCHEMA_KEY: encoded, DUMPS_KEY: json.dumps(dumps), MADE_FOR_KEY: made_for}
    schema = schemas.PLAN.with_metadata(notes)
    table = pa.Table.from_pylist([asdict(piece) for piece in found.pieces], schema=schema)
    write_parquet(run.plan_path, schema, [table], storage=run.storage)


def _continues(before: Run, found: PlanPreview) -> bool:
    """Whether the plan begins with the shards of the run, perhaps at another commit."""
    both = (before.pieces, found.pieces)
    planned, now = ([replace(piece, path="") for piece in pieces] for pieces in both)
    return now[: len(planned)] == planned


def _cut_problems(before: Run, found: PlanPreview) -> list[RunError]:
    """Whether changed settings would change the cut."""
    if before.pieces == found.pieces:
        return []
    was, now = before.settings, found.settings
    pairs = [("source.path", was.source.path, now.source.path)]
    pairs += [(f"plan.{key}", old, getattr(now.plan, key)) for key, old in was.plan]
    changed = [f"{key} ({old!r}, now {new!r})" for key, old, new in pairs if old != new]
    problem = f"{before.address}: planned with another {', '.join(changed)}; set it back, or use"
    return [RunError(f"{problem} another folder")] if changed else []


def _check_same_input(before: Run, found: PlanPreview) -> None:
    old_files = {piece.path: piece.digest for piece in before.pieces}
    new_files = {piece.path: piece.digest for piece in found.pieces}
    notes = [f"{path} was removed" for path in old_files if path not in new_files]
    notes += [f"{path} was added" for path in new_files if path not in old_files]
    both = (path for path in old_files if path in new_files)
    notes += [f"{path} has changed" for path in both if old_files[path] != new_files[path]]
    more = f" (and {len(notes) - 3} more)" if len(notes) > 3 else ""
    remedy = "restore it, or use another folder"
    if _continues(before, found):
        remedy = f"restore it, or run `datamask extend {before.address}` to select from all files"
    raise RunError(
        f"{before.address}: the input is not what was planned: {', '.join(notes[:3])}{more}; "
        f"{remedy}"
    )
