"""Measurement of the real stages on a sample of the user's corpus, on this machine.

Rows of up to three shards are copied into a temporary folder, and the whole pipeline runs on them
in this process: on a few rows, which shows the cost of starting a process (imports, the model),
then at growing sizes until the time is used or the shards are complete. The first of these is not
small, because learning takes a different number of steps on few documents. The temporary folder is
removed, and the estimated run is not changed.
"""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datamask.config.compute import Compute
from datamask.config.outputs import LOOKS_CLOSER
from datamask.config.settings import Settings
from datamask.embedding.speed import embedding_speed
from datamask.estimate.costs import Measurement, Size, fit, forecast_rounds, size_of
from datamask.execution.pipeline import run_stage
from datamask.planning.plan import plan_run
from datamask.planning.preview import PlanPreview
from datamask.runs import budget
from datamask.runs.in_progress import working
from datamask.runs.opening import create_run
from datamask.runs.records import read_record
from datamask.runs.run import Run
from datamask.runs.stages import stages_of
from datamask.source.opening import is_remote
from datamask.source.reading import read_piece

logger = logging.getLogger(__name__)

MEASURED_SHARDS = 3
MOST_ROWS = 20_000
"""Most rows of a shard that are copied."""

COLD_ROWS = 256
FIRST_ROWS = 1000
MOST_GROWTH = 4
"""Largest ratio of the sizes of two consecutive passes."""

ROWS_PER_GROUP = 4096
LESS_OF_A_SAMPLE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Result of a calibration.

    Args:
        measured: every stage at every size, in a warm process.
        once: seconds and CPU seconds that every process spends once, by stage.
        rows: per shard at the largest size.
        whole: whether these are all rows of the shards.
        left: share of the documents that are embedded.
        sample_bytes: compressed bytes of the sample at the largest size.
        sample_documents: documents of the sample at the largest size.
        download_rate: bytes per second read from a remote source; None for a local source.
        seconds: duration of the calibration.
    """

    measured: tuple[Measurement, ...]
    once: dict[str, tuple[float, float]]
    rows: int
    whole: bool
    left: float
    sample_bytes: int
    sample_documents: int
    download_rate: float | None
    seconds: float


def calibrate(found: PlanPreview, compute: Compute, seconds: float) -> Calibration:
    """Run the pipeline on a sample of a plan.

    Args:
        found: the plan to estimate.
        compute: how it will be computed; the calibration processes one shard after another.
        seconds: approximate time to spend. The smallest passes always run.

    Raises:
        InputError: a file of the source is unreadable.
        DatamaskError: a stage fails.
    """
    begun = time.perf_counter()
    compute = compute.model_copy(update={"workers": 1})
    with (
        tempfile.TemporaryDirectory(prefix="datamask-estimate-") as name,
        _quietly(),
        working("calibration"),
    ):
        tables, whole, rate = _sample(found)
        most = min(table.num_rows for table in tables)

        def run_pass(shards: int, rows: int, *, closely: bool = True) -> _Pass:
            parts = [table.slice(0, rows) for table in tables[:shards]]
            return _Pass(Path(name) / "pass", parts, found, compute, closely)

        def left() -> float:
            return seconds - (time.perf_counter() - begun)

        cold = run_pass(1, min(COLD_ROWS, most))
        rows = _first_rows(cold, len(tables), most, left())
        # With half the rows, a cost of a shard cannot be mistaken for a cost of its documents.
        fewer = rows if rows == most else rows // 2
        measured = [*run_pass(1, fewer, closely=False).measured]
        last = run_pass(len(tables), rows)
        measured += last.measured
        while rows < most:
            larger = min(most, int(rows * min(MOST_GROWTH, last.spare(left()) / last.seconds)))
            if larger < 1.5 * rows and larger < most:
                break
            rows = larger
            last = run_pass(len(tables), rows)
            measured += last.measured
        measured += last.measure_smaller_sample("map_documents")
        measured += last.measure_smaller_sample("sample_documents", "neighbour_documents")
        return Calibration(
            measured=tuple(measured),
            once={one.stage: _beyond(one, measured) for one in cold.measured},
            rows=rows,
            whole=whole and rows == most,
            left=last.left,
            sample_bytes=last.source_bytes,
            sample_documents=len(tables) * rows,
            download_rate=rate,
            seconds=time.perf_counter() - begun,
        )


def _first_rows(cold: _Pass, shards: int, most: int, seconds: float) -> int:
    """Rows of a shard in the first passes: fewer if a model would need half of the seconds left."""
    rows = float(FIRST_ROWS)
    for stage in ("classifier_scores", "embeddings"):
        speed = embedding_speed(cold.run, stage)
        if speed is not None:
            rows = min(rows, speed.documents_per_second * seconds / 2 / (1 + shards))
    return min(most, max(COLD_ROWS // 4, int(rows)))


def _beyond(cold: Measurement, measured: list[Measurement]) -> tuple[float, float]:
    """Seconds and CPU seconds of a first pass beyond those of a warm process."""
    law = fit([one for one in measured if one.stage == cold.stage])
    return (
        max(0.0, cold.seconds - law.at("seconds", cold.size)),
        max(0.0, cold.cpu_seconds - law.at("cpu_seconds", cold.size)),
    )


def _sample(found: PlanPreview) -> tuple[list[pa.Table], bool, float | None]:
    """The first rows of shards spread over the plan, equally many of each.

    Returns:
        The rows; whether they are whole shards; bytes per second of a remote source.
    """
    by_shard = itertools.groupby(found.pieces, lambda piece: piece.shard)
    shards = [list(pieces) for _, pieces in by_shard]
    sizes = [sum(piece.rows for piece in pieces) for pieces in shards]
    # The last shard of a file may be small.
    least = 0.9 * np.median(sizes)
    usual = [shard for shard, size in enumerate(sizes) if size >= least]
    places = np.linspace(0, len(usual) - 1, min(MEASURED_SHARDS, len(usual))).round().astype(int)
    chosen = [usual[place] for place in places]
    rows = min(MOST_ROWS, *(sizes[shard] for shard in chosen))
    start, size = time.perf_counter(), 0
    tables = []
    for shard in chosen:
        batches: list[pa.RecordBatch] = []
        left = rows
        for piece in shards[shard]:
            wanted = replace(piece, rows=min(left, piece.rows))
            size += piece.bytes * wanted.rows // max(piece.rows, 1)
            batches += read_piece(wanted, found.schema.names) if left else ()
            left -= wanted.rows
        # Files may have another order of columns, and narrower types.
        parts = [batch.select(found.schema.names).cast(found.schema) for batch in batches]
        tables.append(pa.Table.from_batches(parts).combine_chunks())
    seconds = time.perf_counter() - start
    uncompressed = sum(piece.bytes for piece in found.pieces)
    fetched = size * found.bytes / max(uncompressed, 1)
    rate = fetched / seconds if is_remote(found.settings.source.path) else None
    return tables, rows == max(sizes[shard] for shard in chosen), rate


def _settings(found: PlanPreview, tables: list[pa.Table], source: Path) -> Settings:
    """The settings of a pass, with budgets in proportion to its documents."""
    settings, selection = found.settings, found.settings.selection
    documents = sum(table.num_rows for table in tables)
    # Limits take no time, and the sample may not contain their groups.
    free = {"floor": 0.0, "cap": 1.0}
    share: dict[str, Any] = {
        "limits": tuple(one.model_copy(update=free) for one in selection.limits),
        # One round after the first is enough to measure the cost of each.
        "rounds": min(selection.rounds, 2),
    }
    if selection.documents is not None:
        share |= {"documents": None, "ratio": selection.documents / found.documents}
    if selection.tokens is not None:
        share["tokens"] = max(1, selection.tokens * documents // found.documents)
    selection = selection.model_copy(update=share)
    if selection.training is not None:
        # Two epochs, in the unit of the budget, can be met on any sample.
        unit = "documents" if selection.tokens is None else "tokens"
        total = 2 * budget.total_units(selection, documents)
        totals = {"training_documents": None, "training_tokens": None}
        selection = selection.model_copy(update=totals | {f"training_{unit}": total})
    cut = {"rows_per_shard": tables[0].num_rows, "bytes_per_shard": 2**62}
    changes: dict[str, Any] = {
        "selection": selection,
        "source": settings.source.model_copy(update={"path": str(source)}),
        "plan": settings.plan.model_copy(update=cut),
    }
    if settings.publication is not None:
        changes["publication"] = settings.publication.model_copy(update={"dry_run": True})
    return settings.model_copy(update=changes)


class _Pass:
    """A run of the pipeline in a folder that is emptied first, and its measurements."""

    def __init__(
        self,
        folder: Path,
        tables: list[pa.Table],
        found: PlanPreview,
        compute: Compute,
        closely: bool,
    ) -> None:
        begun = time.perf_counter()
        shutil.rmtree(folder, ignore_errors=True)
        source = folder / "source"
        source.mkdir(parents=True)
        for number, table in enumerate(tables):
            path = source / f"{number:05d}.parquet"
            pq.write_table(table, path, row_group_size=ROWS_PER_GROUP, compression="zstd")
        self.source_bytes = _bytes_in(source)
        self.root = folder / "run"
        self.compute = compute
        self.documents = sum(table.num_rows for table in tables)
        self.shards = len(tables)
        self.left = 1.0
        self.grown: dict[str, int] = {}
        self.settings = _settings(found, tables, source)
        self.run: Run
        stages = stages_of(self.settings)
        if not closely:
            stages = list(itertools.takewhile(lambda one: one not in LOOKS_CLOSER, stages))
        measured = [self._measure(stage) for stage in ("plan", *stages)]
        receipts = (self.run.receipt("quality", shard) for shard in range(self.shards))
        self.left = sum(one.metrics["kept"] for one in receipts) / self.documents
        measured = self._of_rounds(measured, forecast_rounds(found.settings))
        self.measured = [replace(one, size=self.size()) for one in measured]
        self.seconds = time.perf_counter() - begun
        logger.info(
            "calibrating: %d documents in %d shards: %.1f s",
            self.documents,
            self.shards,
            self.seconds,
        )

    def measure_smaller_sample(self, *names: str) -> list[Measurement]:
        """The stages that draw a sample, again with smaller values of these `report` settings."""
        report = self.settings.report
        sampled = self.size().sampled // LESS_OF_A_SAMPLE
        smaller = {name: max(10, min(getattr(report, name), sampled)) for name in names}
        self.settings = self.settings.model_copy(
            update={"report": report.model_copy(update=smaller)}
        )
        self.run = create_run(self.root, self.settings, self.run.pinned_revisions)
        stages = [stage for stage in stages_of(self.settings) if stage in LOOKS_CLOSER]
        return [self._measure(stage, force=True) for stage in stages]

    def spare(self, seconds: float) -> float:
        """What is left of some seconds after the two measurements of smaller samples."""
        return seconds - 2 * sum(one.seconds for one in self.measured if one.stage in LOOKS_CLOSER)

    def size(self) -> Size:
        """The size of this run."""
        return size_of(self.shards, self.documents, self.left, self.settings)

    def _of_rounds(self, measured: list[Measurement], rounds: int) -> list[Measurement]:
        """Scale the measured rounds to the forecast number, and separate the totals from them."""
        by_stage = {one.stage: one for one in measured}
        if "round" not in by_stage:
            return measured
        together = by_stage["round"]
        # The first round judges all documents; a later one moves those that are undecided.
        times = rounds - 1
        for stage, first in (("round", self.shards), ("round_total", 2)):
            units = range(self.run.num_units(stage))
            often = [1 if unit < first else times for unit in units]
            records = [read_record(self.run, stage, unit) for unit in units]
            sizes = [self.run.path(stage, unit).stat().st_size for unit in units]
            spent = [(one and one.seconds) or 0.0 for one in records]
            seconds = float(np.dot(often, spent))
            by_stage[stage] = replace(
                by_stage[stage],
                seconds=seconds,
                cpu_seconds=seconds * together.cpu_seconds / together.seconds,
                disk_bytes=int(np.dot(often, sizes)),
            )
        return list(by_stage.values())

    def _measure(self, stage: str, force: bool = False) -> Measurement:
        before = _bytes_in(self.root) - self.grown.get(stage, 0)
        start, used = time.perf_counter(), _cpu_seconds()
        if stage == "plan":
            self.run = plan_run(self.root, self.settings, self.compute, publishing=False)
        else:
            run_stage(self.run, stage, self.compute, force=force)
        seconds, cpu_seconds = time.perf_counter() - start, _cpu_seconds() - used
        self.grown[stage] = _bytes_in(self.root) - before
        units = range(self.run.num_units(stage)) if stage != "plan" else ()
        records = [read_record(self.run, stage, unit) for unit in units]
        return Measurement(
            stage=stage,
            size=self.size(),
            seconds=seconds,
            cpu_seconds=cpu_seconds,
            disk_bytes=self.grown[stage],
            source_bytes=int(sum(r.metrics.get("source_bytes", 0) for r in records if r)),
        )


def _cpu_seconds() -> float:
    return sum(os.times()[:4])  # user and system, of this process and its children


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@contextmanager
def _quietly() -> Iterator[None]:
    """Log the passes, and only errors of the stages, because their warnings are of a sample."""
    parent = logging.getLogger("datamask")
    before = {one: one.level for one in (logger, parent)}
    logger.setLevel(logger.getEffectiveLevel())
    parent.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for one, level in before.items():
            one.setLevel(level)
