"""The plan's time, hours of CPU and GPU, disk and network, from the laws of its stages.

Shards are worked on by `compute.workers` at once on each machine (stages on a GPU: as many as there
are GPUs), every machine being like the one that was measured. That takes at least as many rounds as
there are shards for a worker, and at least as long as the machines' cores need for the CPU's work.
Stages that look at all shards run on one machine. Orchestration is not in it (docs/scaling.md).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from datamask.config.compute import Compute
from datamask.config.settings import Settings
from datamask.estimate.calibration import Calibration, calibrate
from datamask.estimate.costs import Law, Size, fit, size_of
from datamask.execution.devices import visible_gpus
from datamask.planning.preview import PlanPreview
from datamask.runs.stages import SHARD_STAGES, STAGES, stages_of
from datamask.source.opening import is_remote

BYTES_PER_NUMBER = 2
TOTAL = "total"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageForecast:
    """What a stage will take.

    Args:
        stage: its name, or `total`.
        seconds: from its beginning to its end; None if it waits for a network of unknown speed.
        cpu_hours: of all its threads on all machines.
        gpu_hours: for which GPUs are held; None where none is used.
        disk_bytes: that it leaves; of `total`: the most at any time.
        download_bytes: of a remote source.
        upload_bytes: to the Hub.
    """

    stage: str
    seconds: float | None
    cpu_hours: float
    gpu_hours: float | None
    disk_bytes: int
    download_bytes: int
    upload_bytes: int


NAMES = tuple(StageForecast.__slots__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What the run is computed on.

    Args:
        machines: like this one.
        shards: worked on at once, by all of them.
        gpus: that work at once; 0 where none is used.
        cores: of all of them.
    """

    machines: int
    shards: int
    gpus: int
    cores: int


def fleet_of(compute: Compute, machines: int) -> Fleet:
    """So many machines like this one, with the workers and GPUs of the settings."""
    gpus = 0
    if compute.device_kind in ("auto", "cuda"):
        gpus = min(len(visible_gpus()), compute.gpus or compute.workers, compute.workers)
    cores = len(os.sched_getaffinity(0))
    return Fleet(
        machines=machines,
        shards=machines * compute.workers,
        gpus=machines * gpus,
        cores=machines * cores,
    )


def estimate(
    found: PlanPreview, compute: Compute, *, machines: int = 1, seconds: float = 120
) -> tuple[list[StageForecast], Calibration]:
    """Calibrate, then forecast every stage of a plan, and their total.

    Args:
        found: the plan, not yet written.
        compute: how it will be computed on each machine.
        machines: how many like this one.
        seconds: to spend on measuring, about.

    Raises:
        DatamaskError: whatever the stages find wrong with the sample.
    """
    # Labels are of documents that a sample may not hold; what probes cost is little.
    quality = found.settings.quality.model_copy(update={"scores": found.settings.scores})
    found = replace(found, settings=found.settings.model_copy(update={"quality": quality}))
    calibration = calibrate(found, compute, seconds)
    return forecast(found, calibration, fleet_of(compute, machines)), calibration


def forecast(found: PlanPreview, calibration: Calibration, fleet: Fleet) -> list[StageForecast]:
    """Every stage of a plan, and their total.

    Args:
        found: the plan.
        calibration: of it.
        fleet: what it is computed on.
    """
    settings = found.settings
    size = size_of(found.num_shards, found.documents, calibration.left, settings.report)
    scale = found.bytes / found.documents * calibration.sample_documents / calibration.sample_bytes
    remote = is_remote(settings.source.path)
    stages = []
    for stage in ("plan", *stages_of(settings)):
        law = fit([one for one in calibration.measured if one.stage == stage])
        start, start_cpu = calibration.once[stage]
        elapsed = _elapsed(law, stage, size, fleet) + start
        download = round(law.at("source_bytes", size) * scale) if remote else 0
        if download and calibration.download_rate:
            readers = fleet.machines if stage in SHARD_STAGES else 1
            elapsed += download / calibration.download_rate / readers
        processes = min(fleet.machines, size.shards) if stage in SHARD_STAGES else 1
        cpu = law.at("cpu_seconds", size) + processes * start_cpu
        held = (
            law.at("seconds", size)
            if stage in STAGES and STAGES[stage].on_device and fleet.gpus
            else None
        )
        stages.append(
            StageForecast(
                stage=stage,
                seconds=elapsed,
                cpu_hours=cpu / 3600,
                gpu_hours=None if held is None else held / 3600,
                disk_bytes=round(law.at("disk_bytes", size)),
                download_bytes=download,
                upload_bytes=0,
            )
        )
    return _with_total(list(_with_upload(stages, settings)), settings, size, fleet)


def _elapsed(law: Law, stage: str, size: Size, fleet: Fleet) -> float:
    """Seconds from the beginning of a stage to its end, on warm machines."""
    whole = law.at("seconds", size)
    if stage not in SHARD_STAGES:
        return whole
    at_once = (
        fleet.gpus if stage in STAGES and STAGES[stage].on_device and fleet.gpus else fleet.shards
    )
    fixed = law.coefficients["seconds"][0]
    rounds = math.ceil(size.shards / at_once)
    by_cores = law.at("cpu_seconds", size) / fleet.cores
    return max(fixed + (whole - fixed) / size.shards * rounds, by_cores)


def _with_upload(stages: Sequence[StageForecast], settings: Settings) -> Iterator[StageForecast]:
    publication = settings.publication
    for one in stages:
        if one.stage == "publication" and publication is not None and not publication.dry_run:
            # How fast the Hub takes it is not known before it is tried.
            yield replace(one, seconds=None, upload_bytes=one.disk_bytes)
        else:
            yield one


def _with_total(
    stages: list[StageForecast], settings: Settings, size: Size, fleet: Fleet
) -> list[StageForecast]:
    gpu_hours = [one.gpu_hours for one in stages if one.gpu_hours is not None]
    # Checkpoints: the vectors of the shards that are being embedded, until these are whole.
    at_once = min(size.shards, fleet.gpus or fleet.shards)
    vectors = size.documents / size.shards * settings.embedding.dimension * BYTES_PER_NUMBER
    total = StageForecast(
        stage=TOTAL,
        seconds=sum(one.seconds for one in stages if one.seconds is not None),
        cpu_hours=sum(one.cpu_hours for one in stages),
        gpu_hours=sum(gpu_hours) if gpu_hours else None,
        disk_bytes=sum(one.disk_bytes for one in stages) + round(at_once * vectors),
        download_bytes=sum(one.download_bytes for one in stages),
        upload_bytes=sum(one.upload_bytes for one in stages),
    )
    return [*stages, total]
