"""Estimate the cost of a plan: run up to three of its shards on this machine, and multiply.

One shard is run through all stages in a temporary folder twice, then three shards, by one worker.
The first run also pays what a process pays once (imports, the model, kernels). Every document
beyond it costs as much as a further document of the three shards. Seconds and bytes of these runs
are measured; the cost of the plan is arithmetic. Other machines may differ.
"""

from __future__ import annotations

import itertools
import logging
import os
import tempfile
import time
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from datamask.config.compute import Compute
from datamask.config.outputs import SAMPLED_DOCUMENTS
from datamask.config.scores import ExamplesScore, Score
from datamask.config.selection import without_budget
from datamask.config.settings import Settings
from datamask.errors import SettingsError
from datamask.execution.pipeline import run_stage
from datamask.planning.plan import plan_run
from datamask.planning.preview import PlanPreview
from datamask.quality.example_texts import LEAST_LABELS, RANDOM_DOCUMENTS
from datamask.runs.stages import stages_of
from datamask.runs.subset_files import expected_documents
from datamask.source.reading import read_piece

logger = logging.getLogger(__name__)

MOST_SHARDS = 3


@dataclass(frozen=True, slots=True)
class StageEstimate:
    """The cost of a stage, or of all (`total`), by one worker on this machine.

    Args:
        stage: its name.
        measured_seconds: of the stage, in the run with the most documents.
        seconds: from start to end.
        cpu_seconds: of all threads.
        disk_bytes: of its output.
    """

    stage: str
    measured_seconds: float
    seconds: float
    cpu_seconds: float
    disk_bytes: int


def estimate(plan: PlanPreview, compute: Compute, most: int) -> tuple[list[StageEstimate], int]:
    """Return the cost of every stage of a plan and their total, and the documents measured.

    One worker runs at most *most* documents, at least 2, of each shard.

    Raises:
        InputError: a file of the source is unreadable.
        SettingsError: a score cannot be fitted to so few documents.
        DatamaskError: a stage fails on these documents.
    """
    compute = compute.model_copy(update={"workers": 1})
    with tempfile.TemporaryDirectory(prefix="datamask-estimate-") as folder:
        tables = _sample(plan, most)
        first = tables[:1] if len(tables) > 1 else [tables[0].slice(0, -(-len(tables[0]) // 2))]
        is_fitted = any(score.is_fitted for score in plan.settings.scores)
        if is_fitted and len(first[0]) < LEAST_LABELS:
            raise SettingsError(
                f"the estimate begins with {len(first[0]):,} documents, but a score of kind "
                f"`examples` is fitted to at least {LEAST_LABELS}; raise --documents or "
                "plan.rows_per_shard"
            )
        cold, warm, more = (
            _measured(Path(folder, str(number)), some, plan, compute)
            for number, some in enumerate((first, first, tables))
        )
    begun, sampled = (sum(map(len, some)) for some in (first, tables))
    # Stages that read a sample of the documents.
    most_read = {"report": SAMPLED_DOCUMENTS, "example_models": RANDOM_DOCUMENTS}
    stages = []
    for stage in cold:
        read = min(plan.documents, most_read.get(stage, plan.documents))
        further = max(sampled, read) - begun
        each = np.maximum(0, more[stage] - warm[stage]) / max(1, sampled - begun)
        # Fixed costs are not negative; more shards may need more rounds than one.
        each = np.minimum(each, more[stage] / sampled)
        seconds, cpu_seconds, size = (cold[stage] + further * each).tolist()
        stages.append(StageEstimate(stage, more[stage][0], seconds, cpu_seconds, round(size)))
    names = StageEstimate.__slots__[1:]
    sums: dict[str, Any] = {name: sum(getattr(cost, name) for cost in stages) for name in names}
    return [*stages, StageEstimate("total", **sums)], sampled


def _sample(plan: PlanPreview, most: int) -> list[pa.Table]:
    """Read the first rows of up to three shards, one from each third of a plan."""
    shards = [list(pieces) for _, pieces in itertools.groupby(plan.pieces, attrgetter("shard"))]
    tables = []
    for shard in sorted({len(shards) * third // MOST_SHARDS for third in range(MOST_SHARDS)}):
        batches: list[pa.RecordBatch] = []
        for piece in shards[shard]:
            rows = min(most - sum(map(len, batches)), piece.rows)
            piece, source = replace(piece, rows=rows), plan.settings.source
            read = read_piece(piece, plan.schema.names, source=source) if rows else ()
            # Files may have another order of columns, and narrower types.
            batches += [batch.cast(plan.schema) for batch in read]
        tables.append(pa.Table.from_batches(batches, plan.schema))
    return tables


def _settings(plan: PlanPreview, tables: list[pa.Table], source: Path) -> Settings:
    """Fit the plan's settings to these documents: its budget as a ratio, no limits, no repeats."""
    settings = plan.settings
    ids = pa.chunked_array([table[settings.source.columns.id] for table in tables])
    scores = tuple(_score(score, ids, source.parent) for score in settings.scores)
    size = sum(piece.bytes for piece in plan.pieces)
    kept = expected_documents(settings.selection, plan.documents, size)
    changes: dict[str, dict[str, Any]] = {
        "source": {"path": str(source)},
        "plan": {"rows_per_shard": max(map(len, tables)), "bytes_per_shard": 2**62},
        "quality": {"scores": scores},
        "selection": {**without_budget(), "ratio": kept / plan.documents},
        "evaluation": {"arms": ()},
    }
    if settings.publication is not None:
        changes["publication"] = {"dry_run": True}
    if settings.tokens is not None:
        changes["tokens"] = {"phases": ()}  # These documents may not fill them.
    if settings.tokens is not None and settings.counts_for_trainer:
        columns = settings.source.columns.model_copy(update={"token_count": ""})
        changes["source"] |= {"columns": columns, "tokenizer": settings.tokens.tokenizer}
    groups = {name: getattr(settings, name).model_copy(update=of) for name, of in changes.items()}
    return settings.model_copy(update=groups)


def _score(score: Score, ids: pa.ChunkedArray, folder: Path) -> Score:
    """Make up labels for a score where these documents may have none, or lack its group."""
    if not isinstance(score, ExamplesScore):
        return score
    changes: dict[str, Any] = {"least_correlation": -1.0}
    if not score.path:
        logger.info("estimate: score %s is fitted to labels that are made up", score.name)
        path, values = folder / f"{score.name}.parquet", pa.array(np.arange(len(ids)) % 2)
        pq.write_table(pa.table({score.id_column: ids, score.column: values}), path)
        changes |= {"labels": str(path), "where": None}
    return score.model_copy(update=changes)


def _measured(
    folder: Path, tables: list[pa.Table], plan: PlanPreview, compute: Compute
) -> dict[str, npt.NDArray[np.float64]]:
    """Run all stages on these documents; return seconds, CPU seconds and bytes on disk of each."""
    source = folder / "source"
    source.mkdir(parents=True)
    for number, table in enumerate(tables):
        pq.write_table(table, source / f"{number:05d}.parquet", compression="zstd")
    settings = _settings(plan, tables, source)
    before, measured = _spent(folder), {}
    run = plan_run(folder / "run", settings, compute, publishing=False)
    for stage in ("plan", *stages_of(settings)):
        if stage != "plan":
            run_stage(run, stage, compute)
        after = _spent(folder)
        before, measured[stage] = after, after - before
    return measured


def _spent(folder: Path) -> npt.NDArray[np.float64]:
    """Return the clock, CPU seconds of this process and its children, and bytes in a folder."""
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return np.array([time.perf_counter(), sum(os.times()[:4]), size])
