"""Measure the real stages on a little of the user's own corpus, on this machine.

Rows of up to three shards are copied into a temporary folder, and the whole pipeline runs on them
in this process: twice on a few rows, so that the difference tells what a process pays once
(imports, the model), then at growing sizes until the time is used up or the shards are whole. How
many steps learning takes on fewer documents than a shard has is not how many it will take, so the
first size is not small. Nothing stays behind, and the run that is estimated is not touched.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
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
from datamask.estimate.costs import Measurement, Size, size_of
from datamask.execution.pipeline import run_stage
from datamask.planning.plan import plan_run
from datamask.planning.preview import PlanPreview
from datamask.runs.opening import create_run
from datamask.runs.records import read_record
from datamask.runs.run import Piece, Run
from datamask.runs.stages import stages_of
from datamask.source.opening import is_remote
from datamask.source.reading import read_piece

logger = logging.getLogger(__name__)

MEASURED_SHARDS = 3
MOST_ROWS = 20_000
"""Rows of a shard that are copied at most."""

COLD_ROWS = 256
COLD_STEPS = 2
FIRST_ROWS = 1000
MOST_GROWTH = 4
"""How much larger a pass is than the one before, at most."""

ROWS_PER_GROUP = 4096
LESS_OF_A_SAMPLE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was measured.

    Args:
        measured: every stage at every size, warm.
        once: what every process pays once: seconds and CPU seconds by stage.
        rows: of a shard, at the largest size.
        whole: whether these are all rows of the shards.
        left: share of the documents that is embedded.
        sample_bytes: compressed bytes of the sample at the largest size.
        sample_documents: documents in it.
        download_rate: bytes a second at which a remote source was read; None for a local one.
        seconds: that all of it took.
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
        found: what is to be estimated.
        compute: how it will be computed; here one shard after another.
        seconds: to spend, about. The smallest passes are made in any case.

    Raises:
        InputError: a file of the source is unreadable.
        DatamaskError: whatever else the stages find wrong.
    """
    begun = time.perf_counter()
    one = compute.model_copy(update={"workers": 1})
    with tempfile.TemporaryDirectory(prefix="datamask-estimate-") as name, _quietly():
        folder = Path(name)
        tables, whole, rate = _sample(found)
        settings = _settings(found)
        most = min(table.num_rows for table in tables)
        rows = min(FIRST_ROWS, most)

        def run_pass(shards: int, rows: int, settings: Settings = settings) -> list[Measurement]:
            start = time.perf_counter()
            parts = [table.slice(0, rows) for table in tables[:shards]]
            passes.append(_Pass(folder / "pass", parts, settings, one, found.documents))
            made = passes[-1].measure()
            took.append(time.perf_counter() - start)
            told = f"{shards * rows} documents in {shards} shards: {took[-1]:.1f} s"
            logger.warning("calibrating: %s", told)
            return made

        passes: list[_Pass] = []
        took: list[float] = []
        steps = min(settings.selection.steps, COLD_STEPS)
        selection = settings.selection.model_copy(update={"steps": steps})
        short = settings.model_copy(update={"selection": selection})
        cold, warm = (run_pass(1, min(COLD_ROWS, most), short) for _ in range(2))
        once = {
            first.stage: (
                max(0.0, first.seconds - then.seconds),
                max(0.0, first.cpu_seconds - then.cpu_seconds),
            )
            for first, then in zip(cold, warm, strict=True)
        }
        measured = run_pass(1, rows)
        if len(tables) > 1:
            measured += run_pass(len(tables), rows)
        while rows < most:
            left = seconds - (time.perf_counter() - begun)
            larger = min(most, int(rows * min(MOST_GROWTH, left / took[-1])))
            if larger < 1.5 * rows and larger < most:
                break
            rows = larger
            measured += run_pass(len(tables), rows)
        measured += passes[-1].measure_with_less_of_a_sample("map_documents")
        measured += passes[-1].measure_with_less_of_a_sample(
            "sample_documents", "neighbour_documents"
        )
        return Calibration(
            measured=tuple(measured),
            once=once,
            rows=rows,
            whole=whole and rows == most,
            left=passes[-1].left,
            sample_bytes=passes[-1].source_bytes,
            sample_documents=len(tables) * rows,
            download_rate=rate,
            seconds=time.perf_counter() - begun,
        )


def _sample(found: PlanPreview) -> tuple[list[pa.Table], bool, float | None]:
    """The first rows of shards from all over the plan, equally many of each.

    Returns:
        the rows; whether they are whole shards; bytes a second, for a remote source.
    """
    shards: dict[int, list[Piece]] = {}
    for piece in found.pieces:
        shards.setdefault(piece.shard, []).append(piece)
    sizes = {shard: sum(piece.rows for piece in pieces) for shard, pieces in shards.items()}
    # The last shard of a file may be a small rest.
    usual = [shard for shard in sizes if sizes[shard] >= 0.9 * np.median(list(sizes.values()))]
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
        # Files may have their columns in another order, and narrower types.
        parts = [pa.Table.from_batches([batch]).select(found.schema.names) for batch in batches]
        whole_shard = pa.concat_tables(part.cast(found.schema) for part in parts)
        tables.append(whole_shard.combine_chunks())
    seconds = time.perf_counter() - start
    uncompressed = sum(piece.bytes for piece in found.pieces)
    fetched = size * found.bytes / max(uncompressed, 1)
    rate = fetched / seconds if is_remote(found.settings.source.path) else None
    return tables, rows == max(sizes[shard] for shard in chosen), rate


def _settings(found: PlanPreview) -> Settings:
    """The settings of a pass, but for the source and the rows of a shard."""
    settings = found.settings
    selection = settings.selection
    # Floors and caps cost nothing, and a sample may not hold their groups.
    free = {"floor": 0.0, "cap": 1.0}
    share: dict[str, Any] = {
        "limits": tuple(one.model_copy(update=free) for one in selection.limits)
    }
    if selection.documents is not None:
        share |= {"documents": None, "ratio": selection.documents / found.documents}
    changes: dict[str, Any] = {"selection": selection.model_copy(update=share)}
    if settings.publication is not None:
        changes["publication"] = settings.publication.model_copy(update={"dry_run": True})
    return settings.model_copy(update=changes)


class _Pass:
    """One run of the pipeline in a folder that it empties first."""

    def __init__(
        self,
        folder: Path,
        tables: list[pa.Table],
        settings: Settings,
        compute: Compute,
        corpus: int,
    ) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self.root = folder / "run"
        self.compute = compute
        self.documents = sum(table.num_rows for table in tables)
        self.shards = len(tables)
        self.left = 1.0
        self.grown: dict[str, int] = {}
        source = folder / "source"
        source.mkdir(parents=True)
        for number, table in enumerate(tables):
            path = source / f"{number:05d}.parquet"
            pq.write_table(table, path, row_group_size=ROWS_PER_GROUP, compression="zstd")
        self.source_bytes = _bytes_in(source)
        plan = settings.plan.model_copy(
            update={"rows_per_shard": tables[0].num_rows, "bytes_per_shard": 2**62}
        )
        selection = settings.selection
        if selection.tokens is not None:
            tokens = max(1, selection.tokens * self.documents // corpus)
            selection = selection.model_copy(update={"tokens": tokens})
        changes = {
            "selection": selection,
            "source": settings.source.model_copy(update={"path": str(source)}),
        }
        changes["plan"] = plan
        self.settings = settings.model_copy(update=changes)
        self.run: Run

    def measure(self) -> list[Measurement]:
        """Every stage, the plan among them."""

        def planned() -> None:
            self.run = plan_run(self.root, self.settings, self.compute, publishing=False)

        found = [self._measured("plan", planned)]
        for stage in stages_of(self.settings):
            found.append(
                self._measured(stage, lambda stage=stage: run_stage(self.run, stage, self.compute))  # type: ignore[misc]
            )
        embedded = range(self.run.num_shards)
        self.left = (
            sum(self.run.receipt("embeddings", shard).rows for shard in embedded) / self.documents
        )
        return [replace(one, size=self.size()) for one in found]

    def measure_with_less_of_a_sample(self, *names: str) -> list[Measurement]:
        """The stages that look closely at a sample again, at less of it, by these settings."""
        report = self.settings.report
        sampled = self.size().sampled // LESS_OF_A_SAMPLE
        smaller = {name: max(10, min(getattr(report, name), sampled)) for name in names}
        settings = self.settings.model_copy(update={"report": report.model_copy(update=smaller)})
        self.settings = settings
        self.run = create_run(self.root, settings, self.run.pinned_revisions)
        stages = [stage for stage in stages_of(settings) if stage in LOOKS_CLOSER]
        found = [
            self._measured(
                stage,
                lambda stage=stage: run_stage(self.run, stage, self.compute, force=True),  # type: ignore[misc]
            )
            for stage in stages
        ]
        return found

    def size(self) -> Size:
        """Of this run."""
        return size_of(self.shards, self.documents, self.left, self.settings.report)

    def _measured(self, stage: str, work: Callable[[], object]) -> Measurement:
        before = _bytes_in(self.root) - self.grown.get(stage, 0)
        start, used = time.perf_counter(), _cpu_seconds()
        work()
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
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep to warnings what the stages say meanwhile."""
    parent = logging.getLogger("datamask")
    before = parent.level
    parent.setLevel(logging.WARNING)
    try:
        yield
    finally:
        parent.setLevel(before)
