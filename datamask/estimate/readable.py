"""A forecast in readable units, and its assumptions."""

from __future__ import annotations

from collections.abc import Sequence

from datamask.estimate.calibration import Calibration
from datamask.estimate.costs import forecast_rounds
from datamask.estimate.forecast import Fleet, StageForecast
from datamask.planning.preview import PlanPreview

HEADINGS = ("stage", "time", "CPU hours", "GPU hours", "disk", "download", "upload")
UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


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
        f"{found.documents:,d} documents in {found.num_shards:,d} shards; {fleet.machines} "
        f"machine{'s' if fleet.machines > 1 else ''} like this one, {fleet.shards} "
        f"shard{'s' if fleet.shards > 1 else ''} at once, "
        + (f"{fleet.gpus} GPUs" if fleet.gpus else "no GPU"),
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
