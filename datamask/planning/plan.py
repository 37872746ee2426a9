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
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path

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
from datamask.source.opening import is_remote
from datamask.source.reading import SCHEMA_KEY
from datamask.storage.local import nearest_folder
from datamask.storage.location import Root
from datamask.storage.protocol import Storage

logger = logging.getLogger(__name__)

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
            run = _write(storage, found, problems, compute, before, origin, extend)
    except BaseException:
        if is_new:
            with contextlib.suppress(OSError):
                (storage.root / "locks").rmdir()
                storage.root.rmdir()
        raise
    _warn_of_slow_products(run.settings, compute)
    for line in run.settings.explained():
        logger.info("%s", line)
    return run


def _warn_of_slow_products(settings: Settings, compute: Compute) -> None:
    """Log a warning if the CPU that would learn here is slower in bfloat16 than in float32."""
    if compute.matmul != "bfloat16" or settings.selection.method != "mask":
        return
    import torch

    from datamask.learning.learner import bfloat16_slowdown, fastest_products

    has_cuda = compute.device_kind == "cuda" or (
        compute.device == "auto" and torch.cuda.is_available()
    )
    if has_cuda or fastest_products(torch.device("cpu")) == "bfloat16":
        return
    if (factor := bfloat16_slowdown()) > 1:
        logger.warning(
            "compute.matmul: bfloat16: this processor does not have it, and a product takes %.1f "
            "times as long as in float32; use float32 or auto",
            factor,
        )


def dry_run(
    root: Root, settings: Settings, compute: Compute
) -> tuple[PlanPreview, list[DatamaskError], bool]:
    """What `plan_run` would write, its problems, and whether the rows of the source were checked.

    Rows of a remote source are not read. Nothing but temporary files is written.
    """
    storage = run_storage(root)
    before = open_run(root) if run_exists(root) else None
    found, problems = examine(settings, before)
    try:
        _check_plan(storage, found, problems, before, extend=False)
    except DatamaskError as error:
        return found, list(error.problems), False
    is_checked = before is not None and _is_checked(found, before)
    if not is_checked and is_remote(found.settings.source.path):
        return found, problems, False
    with tempfile.TemporaryDirectory() as folder:
        known = before if is_checked else None
        problems += _row_problems(Path(folder), found, problems, compute, known)
    return found, problems, True


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
    _check_plan(storage, found, problems, before, extend=extend)
    planned = before if before is not None and before.plan_path.exists() else None
    known = planned or origin
    is_checked = known is not None and _is_checked(found, known)
    if planned is not None and is_checked:
        own = (planned.settings, planned.pinned_revisions)
        if own == (found.settings, found.pinned_revisions):
            return create_run(storage.address, found.settings, found.pinned_revisions)
    with locks.alone(storage):
        known = known if is_checked else None
        problems += _row_problems(storage.root, found, problems, compute, known)
        if problems:
            raise together(problems)
        if planned is None or not is_checked:
            _write_plan(run, found)
        return create_run(storage.address, run.settings, run.pinned_revisions)


def _check_plan(
    storage: Storage,
    found: PlanPreview,
    problems: list[DatamaskError],
    before: Run | None,
    *,
    extend: bool,
) -> None:
    """Add problems of the run's place and of disk space; raise all if a planned run cannot go on.

    Raises:
        DatamaskError: any problem of a planned run that keeps its shards.
    """
    problems += place_problems(storage, found)
    if before is None or not before.plan_path.exists():
        problems += room_problems(storage, found.disk)
    elif extend and before.pieces != found.pieces and _continues(before, found):
        added = found.documents - before.num_documents
        shares = {name: of * added // found.documents for name, of in found.disk.items()}
        problems += room_problems(storage, shares)
    else:
        problems[:0] = _cut_problems(before, found)
        if problems:
            raise together(problems)
        if before.pieces != found.pieces:
            _check_same_input(before, found)


def _is_checked(found: PlanPreview, planned: Run) -> bool:
    """Whether *planned* has this plan, and its rows were checked for the new settings."""
    if not planned.plan_path.exists():
        return False
    made_for = (pq.read_metadata(planned.plan_path).metadata or {}).get(MADE_FOR_KEY, b"")
    return made_for == _rows_matter(found).encode() and planned.pieces == found.pieces


def _rows_matter(found: PlanPreview) -> str:
    """The digest of what `check_rows` depends on, besides the source and the budget."""
    settings, of = found.settings, found.pinned_revisions
    stages = ("scores:", "file_scores:")
    pinned_revisions = {key: of[key] for key in of if key.startswith(stages)}
    source, width = settings.source, settings.embedding.dimension
    return digest([source.layout, source.columns, settings.scores, width, pinned_revisions])


def _row_problems(
    root: Path,
    found: PlanPreview,
    known: list[DatamaskError],
    compute: Compute,
    checked: Run | None,
) -> list[DatamaskError]:
    """Problems in the rows of those files whose columns can be read, and of an impossible budget.

    Args:
        root: a folder; DuckDB spills there.
        found: the plan.
        known: the problems so far.
        compute: memory for the checks.
        checked: a run whose rows are these and were checked; None: there is none.
    """
    problems: list[DatamaskError] = []
    settings, selection = found.settings, found.settings.selection
    if checked is not None:
        counted = [] if known else _counted_problems(found, compute, checked)
        if counted is not None or not (selection.limits or selection.needs_tokens):
            return counted or []
    id_column = settings.source.id_column
    if all(getattr(problem, "column", None) != id_column for problem in known):
        with gathering(problems):
            files = {piece.path: piece.digest for piece in found.pieces}
            pins = found.pinned_revisions.items()
            start = "file_scores:"
            scores = {key.removeprefix(start): of for key, of in pins if key.startswith(start)}
            names = [] if known else found.schema.names
            problems += check_rows(root, files, settings, compute, names, scores)
    return problems


def _counted_problems(
    found: PlanPreview, compute: Compute, checked: Run
) -> list[DatamaskError] | None:
    """Problems of a new budget with what a run has counted; None if it has not counted."""
    now = replace(checked, settings=found.settings, pinned_revisions=found.pinned_revisions)
    if checked.settings.selection == now.settings.selection and (
        checked.fingerprint("quality") == now.fingerprint("quality")
    ):
        return []
    from datamask.planning.preflight_budget import counted_problems  # imports torch

    return counted_problems(now, compute)


def _write_plan(run: Run, found: PlanPreview) -> None:
    encoded = found.schema.serialize().to_pybytes().hex()
    dumps = count_dumps(found.pieces, found.settings.source.columns.dump, found.schema)
    made_for = _rows_matter(found)
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
