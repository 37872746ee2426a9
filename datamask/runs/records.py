"""Keep a record per unit of work: seconds, attempts, the reason of a failure, and a log.

A unit's record is with the SHA-256 of its files in `RUN/records/STAGE/00017.parquet.json`. It is
never state: no output depends on it, and only a unit's file says that the unit is done. Attempts at
the same fingerprint are counted until one succeeds, including killed ones. The log of a unit in
progress, or of one that has failed, is `RUN/logs/STAGE/00017.log`; the log of a finished unit is in
its record.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from datamask.errors import DatamaskError, code_of, describe
from datamask.runs.files import write_text_file
from datamask.runs.in_progress import working
from datamask.runs.run import Run
from datamask.runs.stages import STAGES
from datamask.showing import visible
from datamask.storage.contents import Record

logger = logging.getLogger(__name__)

MOST_ASKED = 20
"""Maximum number of records of a stage that are read to learn how long the stage took before."""

FORMAT = "%(asctime)s %(levelname)-7s %(message)s"


@dataclass(frozen=True, slots=True)
class WorkRecord:
    """One unit of work.

    Args:
        fingerprint: of the output to make.
        attempts: number of attempts so far.
        seconds: duration of the last attempt; None while it runs or if it failed.
        metrics: what the stage noted during its last attempt (see `in_progress.note`).
        failure: why the last attempt failed, in one line; empty while an attempt runs.
        failure_code: the kind of failure (`datamask.errors.code_of`); empty without one.
        log: of all attempts, once one has succeeded.
    """

    fingerprint: str
    attempts: int
    seconds: float | None
    metrics: dict[str, float] = field(default_factory=dict)
    failure: str = ""
    failure_code: str = ""
    log: str = ""


def read_record(run: Run, stage: str, unit: int = 0) -> WorkRecord | None:
    """Read the record of a unit under the current settings; None if no work on it has started."""
    record = _last_record(run, stage, unit)
    return record if record and record.fingerprint == run.fingerprint(stage, unit) else None


def _last_record(run: Run, stage: str, unit: int) -> WorkRecord | None:
    """Read the last record of a unit, whatever its settings were; None if it has no record."""
    try:
        record = Record.parsed(run.fetch(run.record_path(stage, unit)).read_bytes())
        return WorkRecord(**record.work)
    except (OSError, TypeError):
        return None


def seconds_before(run: Run, stage: str, units: Sequence[int]) -> float | None:
    """Estimate the seconds that these units took when they were last made, with any settings.

    The estimate is the mean of at most `MOST_ASKED` of them, times their number; None if a unit has
    no record.
    """
    asked = units[:: -(-len(units) // MOST_ASKED) or 1]
    records = [_last_record(run, stage, unit) for unit in asked]
    seconds = [record.seconds for record in records if record and record.seconds is not None]
    if len(seconds) < len(asked):
        return None
    return sum(seconds) / max(len(seconds), 1) * len(units)


def note_failure(run: Run, stage: str, unit: int, error: Exception) -> None:
    """Note why the last attempt at a unit failed; the next attempt clears it."""
    before = read_record(run, stage, unit)
    fingerprint, attempts = run.fingerprint(stage, unit), before.attempts if before else 1
    record = WorkRecord(fingerprint, attempts, None, {}, describe(error), code_of(error))
    try:
        _write(run, stage, unit, record)
    except (DatamaskError, OSError) as problem:
        logger.warning("%s: cannot record the failure of a unit: %s", stage, problem)


class _Visible(logging.Formatter):
    """Escape names of files and columns in a log, which may be read on a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


@contextlib.contextmanager
def recorded(run: Run, stage: str, unit: int = 0) -> Iterator[None]:
    """Record the start and the end of an attempt; this thread also logs to the unit's log."""
    before = read_record(run, stage, unit)
    anew = before is None or before.seconds is not None
    attempts = 1 if before is None or anew else before.attempts + 1
    _write(run, stage, unit, WorkRecord(run.fingerprint(stage, unit), attempts, None))
    path = run.log_path(stage, unit)
    if not anew:
        run.fetch(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path, mode="w" if anew else "a", encoding="utf-8")
    handler.setFormatter(_Visible(FORMAT))
    thread = threading.get_ident()
    handler.addFilter(lambda record: record.thread == thread)
    library = logging.getLogger("datamask")
    library.addHandler(handler)
    is_done, start = False, time.perf_counter()
    label = run.unit_label(stage, unit) if STAGES[stage].in_parallel else ""
    try:
        _line(handler, f"{stage}: unit {unit:05d}: attempt {attempts} begins")
        with working(run.folder_of(stage, unit), label) as work:
            yield
        seconds = round(time.perf_counter() - start, 3)
        _line(handler, f"attempt {attempts}: done in {seconds:.3f} s")
        log = path.read_text(encoding="utf-8", errors="replace")
        due = run.fingerprint(stage, unit)
        _write(run, stage, unit, WorkRecord(due, attempts, seconds, work.metrics, log=log))
        is_done = True
    except BaseException as error:
        _line(handler, f"attempt {attempts}: {type(error).__name__}: {error}", error)
        raise
    finally:
        library.removeHandler(handler)
        handler.close()
        try:
            _keep_log(run, path, in_record=is_done, is_stored=not anew)
        except (DatamaskError, OSError) as problem:
            logger.warning("log not saved: %s", problem)


def _keep_log(run: Run, path: Path, *, in_record: bool, is_stored: bool) -> None:
    """Store the log of a failed attempt; delete the log file if the record holds the log."""
    name = path.relative_to(run.root).as_posix()
    if not in_record:
        run.storage.put(path, name)
        return
    path.unlink(missing_ok=True)
    if is_stored:
        run.storage.remove(name)


def _line(handler: logging.Handler, text: str, error: BaseException | None = None) -> None:
    # Only the file gets these lines: the terminal and Prefect report the end of work themselves.
    trace = None if error is None else (type(error), error, error.__traceback__)
    level = logging.INFO if error is None else logging.ERROR
    handler.handle(logging.LogRecord("datamask", level, __file__, 0, text, None, trace))


def _write(run: Run, stage: str, unit: int, work: WorkRecord) -> None:
    noted = {name: getattr(work, name) for name in work.__slots__}
    record = run.storage.record(run.name(stage, unit))
    write_record(run, stage, unit, replace(record, work=noted))


def forget_records(run: Run, stage: str, units: Iterable[int]) -> None:
    """Delete the records of units that are about to be repeated by force."""
    for unit in units:
        record = run.storage.record(run.name(stage, unit))
        if record.work:
            write_record(run, stage, unit, replace(record, work={}))


def write_record(run: Run, stage: str, unit: int, record: Record) -> None:
    """Replace the whole record of a unit's output."""
    write_text_file(run.record_path(stage, unit), record.text, run.storage)
