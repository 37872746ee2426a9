"""Forecast of time, CPU and GPU hours, disk and network of a plan, and its readable form.

Each machine is like the calibrated one and processes `compute.workers` shards, or files of the
subset, concurrently (stages on a GPU: one per GPU). A stage takes as many rounds as there are of
them per worker, and at least the time that the cores of all machines need for its CPU seconds.
Stages over all shards run on one machine. Orchestration is not included (docs/scaling.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from datamask.config.compute import Compute
from datamask.config.evaluation import Evaluation
from datamask.config.settings import Settings
from datamask.estimate.calibration import Calibration, calibrate
from datamask.estimate.costs import Law, Size, fit, forecast_rounds, size_of
from datamask.execution.devices import usable_cores, visible_gpus
from datamask.hygiene.similar_pairs import num_units
from datamask.planning.preview import PlanPreview
from datamask.quality.partitions import num_partitions
from datamask.runs import budget
from datamask.runs.stages import SHARD_STAGES, STAGES, stages_of
from datamask.source.opening import is_remote

BYTES_PER_NUMBER = 2
TOTAL = "total"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageForecast:
    """Forecast of a stage.

    Args:
        stage: its name, or `total`.
        seconds: from start to end; None if it depends on a network of unknown speed.
        cpu_hours: of all threads on all machines.
        gpu_hours: during which GPUs are reserved; None without GPUs.
        disk_bytes: of its output; of `total`: the maximum at any time.
        download_bytes: of a remote source.
        upload_bytes: to the Hub.
    """

    stage: str
    seconds: float | None
    cpu_hours: float
    gpu_hours: float | None
    disk_bytes: int = 0
    download_bytes: int = 0
    upload_bytes: int = 0


NAMES = tuple(StageForecast.__slots__)
HEADINGS = ("stage", "time", "CPU hours", "GPU hours", "disk", "download", "upload")
UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The machines that compute a run.

    Args:
        machines: like this one.
        shards: processed concurrently by all machines.
        gpus: of all machines; 0 if none are used.
        cores: of all machines.
    """

    machines: int
    shards: int
    gpus: int
    cores: int


def fleet_of(compute: Compute, machines: int) -> Fleet:
    """Machines like this one, with the workers and GPUs of the settings."""
    gpus = 0
    if compute.device_kind in ("auto", "cuda"):
        gpus = min(len(visible_gpus()), compute.gpus or compute.workers, compute.workers)
    return Fleet(
        machines=machines,
        shards=machines * compute.workers,
        gpus=machines * gpus,
        cores=machines * usable_cores(),
    )


def estimate(
    found: PlanPreview, compute: Compute, *, machines: int = 1, seconds: float = 50
) -> tuple[list[StageForecast], Calibration]:
    """Calibrate, then forecast every stage of a plan, and their total.

    Args:
        found: the plan, not yet written.
        compute: how each machine will compute it.
        machines: number of machines like this one.
        seconds: approximate time for the calibration.

    Raises:
        DatamaskError: a stage fails on the sample.
    """
    # Labels are of documents that a sample may not hold; what probes cost is little.
    quality = found.settings.quality.model_copy(update={"scores": found.settings.scores})
    evaluation = found.settings.evaluation
    without = {"quality": quality, "evaluation": evaluation.model_copy(update={"arms": ()})}
    found = replace(found, settings=found.settings.model_copy(update=without))
    calibration = calibrate(found, compute, seconds)
    fleet = fleet_of(compute, machines)
    training = [training_forecast(evaluation, compute, fleet)] if evaluation.arms else []
    return forecast(found, calibration, fleet, training), calibration


def training_forecast(evaluation: Evaluation, compute: Compute, fleet: Fleet) -> StageForecast:
    """All models of the first seeds; the other stages of an evaluation take little beside them."""
    from datamask.evaluation.models import learning_rates
    from datamask.evaluation.training import step_cost, steps_of

    seconds, cpu_seconds = (one * steps_of(evaluation) for one in step_cost(evaluation, compute))
    models = len(evaluation.arms) * evaluation.seeds * len(learning_rates(evaluation))
    at_once = min(models, fleet.gpus or fleet.shards)
    cpu_hours = models * cpu_seconds / 3600
    return StageForecast(
        stage="training",
        seconds=max(math.ceil(models / at_once) * seconds, cpu_hours * 3600 / fleet.cores),
        cpu_hours=cpu_hours,
        gpu_hours=models * seconds / 3600 if fleet.gpus else None,
    )


def forecast(
    found: PlanPreview,
    calibration: Calibration,
    fleet: Fleet,
    others: Sequence[StageForecast] = (),
) -> list[StageForecast]:
    """Every stage of a plan, *others* that are not calibrated, and the total."""
    settings = found.settings
    size = size_of(found.num_shards, found.documents, calibration.left, settings)
    scale = found.bytes / found.documents * calibration.sample_documents / calibration.sample_bytes
    remote = is_remote(settings.source.path)
    uploads = settings.publication is not None and not settings.publication.dry_run
    stages = []
    for stage in ("plan", *stages_of(settings)):
        law = fit([one for one in calibration.measured if one.stage == stage])
        start, start_cpu = calibration.once[stage]
        on_gpu = stage in STAGES and STAGES[stage].on_device and fleet.gpus > 0
        seconds = law.at("seconds", size)
        elapsed = start + seconds
        processes = machines = 1
        if stage in STAGES and STAGES[stage].in_parallel:
            units = _units(found, stage)
            machines, processes = fleet.machines, min(fleet.machines, units)
            at_once = fleet.gpus if on_gpu else fleet.shards
            elapsed = start + _elapsed(law, size, units, at_once, fleet)
        download = round(law.at("source_bytes", size) * scale) if remote else 0
        if download and calibration.download_rate:
            elapsed += download / calibration.download_rate / machines
        disk = round(law.at("disk_bytes", size))
        uploaded = stage == "publication" and uploads
        stages.append(
            StageForecast(
                stage=stage,
                # The speed of an upload is not known in advance.
                seconds=None if uploaded else elapsed,
                cpu_hours=(law.at("cpu_seconds", size) + processes * start_cpu) / 3600,
                gpu_hours=seconds / 3600 if on_gpu else None,
                disk_bytes=disk,
                download_bytes=download,
                upload_bytes=disk if uploaded else 0,
            )
        )
    stages += others
    return [*stages, _total(stages, settings, size, fleet)]


def _units(found: PlanPreview, stage: str) -> int:
    """Units of a stage that can be made at once."""
    if stage in SHARD_STAGES:
        return found.num_shards
    if stage == "comparison":
        return num_partitions(found.documents)
    if stage == "similar_pairs" and (near := found.settings.quality.near_duplicates):
        return num_units(near, found.documents)
    size = sum(piece.bytes for piece in found.pieces)
    kept = budget.expected_documents(found.settings.selection, found.documents, size)
    return max(1, math.ceil(size * kept / found.documents / found.settings.subset.file_bytes))


def _elapsed(law: Law, size: Size, units: int, at_once: int, fleet: Fleet) -> float:
    """Seconds from start to end of a stage of equal units, in warm processes."""
    fixed = law.coefficients["seconds"][0]
    rounds = math.ceil(units / at_once)
    by_units = fixed + (law.at("seconds", size) - fixed) / units * rounds
    return max(by_units, law.at("cpu_seconds", size) / fleet.cores)


def _total(
    stages: list[StageForecast], settings: Settings, size: Size, fleet: Fleet
) -> StageForecast:
    gpu_hours = [one.gpu_hours for one in stages if one.gpu_hours is not None]
    # Checkpoints contain the vectors of the shards that are being embedded.
    at_once = min(size.shards, fleet.gpus or fleet.shards)
    vectors = size.documents / size.shards * settings.embedding.dimension * BYTES_PER_NUMBER
    return StageForecast(
        stage=TOTAL,
        seconds=sum(one.seconds for one in stages if one.seconds is not None),
        cpu_hours=sum(one.cpu_hours for one in stages),
        gpu_hours=sum(gpu_hours) if gpu_hours else None,
        disk_bytes=sum(one.disk_bytes for one in stages) + round(at_once * vectors),
        download_bytes=sum(one.download_bytes for one in stages),
        upload_bytes=sum(one.upload_bytes for one in stages),
    )


def duration(seconds: float | None) -> str:
    """Seconds in at most two units; a dash for None."""
    if seconds is None:
        return "–"
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 100 else f"{hours // 24} d {hours % 24} h"


def data(size: float) -> str:
    """Bytes in decimal units; a dash for 0."""
    if not size:
        return "–"
    power = 0
    while size >= 999.5 and power < len(UNITS) - 1:
        size, power = size / 1000, power + 1
    return f"{size:.3g} {UNITS[power]}"


def hours(value: float | None) -> str:
    """Hours with three digits; a dash for None."""
    return "–" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def readable_rows(stages: Sequence[StageForecast]) -> list[tuple[str, ...]]:
    """The forecast under `HEADINGS`."""
    return [
        (
            one.stage,
            duration(one.seconds),
            hours(one.cpu_hours),
            hours(one.gpu_hours),
            data(one.disk_bytes),
            data(one.download_bytes),
            data(one.upload_bytes),
        )
        for one in stages
    ]


def basis(found: PlanPreview, calibration: Calibration, fleet: Fleet) -> list[str]:
    """The assumptions of the forecast, one per line."""
    lines = [
        f"{found.documents:,d} documents in {found.num_shards:,d} shards; "
        f"{_counted(fleet.machines, 'machine')} like this one, {_counted(fleet.shards, 'shard')} "
        f"at once, {_counted(fleet.gpus, 'GPU')}",
        f"measured on {calibration.sample_documents:,d} of the documents in "
        f"{calibration.seconds:.0f} s",
    ]
    if not calibration.whole:
        lines.append(
            f"shards were limited to {calibration.rows:,d} documents; a longer calibration "
            "(--calibration-seconds) is more accurate for larger shards"
        )
    rounds = forecast_rounds(found.settings)
    if rounds > 1:
        lines.append(f"{rounds} rounds assumed; a run ends them when the objective has settled")
    if any(one.stage == "publication" for one in calibration.measured):
        lines.append("the upload time is not known in advance: divide the bytes by your bandwidth")
    return lines


def _counted(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'s' if number > 1 else ''}"
