"""What `datamask plan` prints: shards and disk, or the estimate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from datamask.planning.preview import PlanPreview
    from datamask.storage.location import Root

from datamask.cli.given import own_settings


def print_plan(found: PlanPreview, form: str) -> None:
    """Settings, shards and disk: as YAML and tables, as one JSON object, or the shards as CSV."""
    import json

    import yaml

    from datamask.cli.tables import print_rows
    from datamask.runs.stages import stages_of

    chosen = found.settings.model_dump(mode="json")
    names = ("shard", "documents", "bytes", "files")
    shards = [[shard, 0, 0, 0] for shard in range(found.num_shards)]
    for piece in found.pieces:
        row = shards[piece.shard]
        row[1:] = row[1] + piece.rows, row[2] + piece.bytes, row[3] + 1
    if form == "json":
        rows = [dict(zip(names, row, strict=True)) for row in shards]
        stages = stages_of(found.settings)
        told = {"settings": chosen, "stages": stages, "shards": rows, "disk": found.disk}
        click.echo(json.dumps(told))
        return
    if form == "csv":
        print_rows(names, shards, form)
        return
    click.echo(yaml.safe_dump(chosen, sort_keys=False).rstrip())
    click.echo(f"\nstages: {', '.join(stages_of(found.settings))}")
    if shards:
        click.echo("\nshard      documents          bytes  files")
    for shard, documents, size, files in shards:
        click.echo(f"{shard:05d} {documents:14,d} {size:14,d} {files:6,d}")
    if found.disk:
        click.echo("\nstage               bytes on disk (estimate)")
    for stage, size in found.disk.items():
        click.echo(f"{stage:17s} {size:16,d}")


def print_estimate(
    root: Root,
    config: Path | None,
    overrides: tuple[str, ...],
    machines: int,
    seconds: float,
    form: str,
) -> None:
    """The forecast on standard output, what it rests on on standard error."""
    from datamask.cli.tables import print_rows
    from datamask.config.loading import load_settings
    from datamask.estimate.forecast import NAMES, estimate, fleet_of
    from datamask.estimate.readable import HEADINGS, basis, readable_rows
    from datamask.planning.preview import preview

    settings, compute = load_settings(config, overrides, own_settings(root, config))
    found = preview(settings)
    stages, calibration = estimate(found, compute, machines=machines, seconds=seconds)
    for line in basis(found, calibration, fleet_of(compute, machines)):
        click.echo(line, err=True)
    if form == "table":
        print_rows(HEADINGS, readable_rows(stages), form)
    else:
        print_rows(NAMES, (tuple(getattr(one, name) for name in NAMES) for one in stages), form)
