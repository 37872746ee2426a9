"""Output of `datamask plan`: shards and disk space, or the estimate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from datamask.planning.preview import PlanPreview
    from datamask.storage.location import Root

from datamask.cli.given import own_settings
from datamask.cli.progress import shown_progress


def print_plan(found: PlanPreview, form: str) -> None:
    """Print settings, shards and disk space as YAML and tables or as JSON; only shards as CSV."""
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
        click.echo()
        print_rows(names, ((f"{row[0]:05d}", *row[1:]) for row in shards), form)
    if found.disk:
        click.echo()
        print_rows(("stage", "bytes on disk (estimate)"), found.disk.items(), form)


def print_estimate(
    root: Root,
    config: Path | None,
    overrides: tuple[str, ...],
    machines: int,
    seconds: float,
    form: str,
) -> None:
    """Print the forecast on standard output and its assumptions on standard error."""
    from datamask.cli.tables import print_rows
    from datamask.config.loading import load_settings
    from datamask.estimate.forecast import NAMES, estimate, fleet_of
    from datamask.estimate.readable import HEADINGS, basis, readable_rows
    from datamask.planning.preview import preview

    settings, compute = load_settings(config, overrides, own_settings(root, config))
    found = preview(settings)
    with shown_progress():
        stages, calibration = estimate(found, compute, machines=machines, seconds=seconds)
    for line in basis(found, calibration, fleet_of(compute, machines)):
        click.echo(line, err=True)
    if form == "table":
        print_rows(HEADINGS, readable_rows(stages), form)
    else:
        print_rows(NAMES, (tuple(getattr(one, name) for name in NAMES) for one in stages), form)
