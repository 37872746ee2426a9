"""Commands of the first minute: `init` and `doctor`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from datamask.cli.options import output_option


@click.command()
@click.argument("source")
@output_option(
    default=Path("datamask.yaml"),
    help="The settings file to write; an existing file is never changed.",
)
def init(source: str, output: Path) -> None:
    """Write a commented settings file from a look at SOURCE.

    SOURCE is a folder, file, glob or URL of Parquet files. Reads their footers and a few rows.

    \b
    datamask init /data/fineweb -o fineweb.yaml
    datamask init hf://datasets/HuggingFaceFW/fineweb/sample/10BT
    """  # noqa: D301 - click wants the character itself
    from datamask.errors import SettingsError
    from datamask.planning.first_settings import look, settings_text

    if output.exists():
        raise SettingsError(f"{output}: exists already; name another file with --output")
    found = look(source)
    with output.open("x", encoding="utf-8") as file:
        file.write(settings_text(found, str(output)))
    for line in found.lines:
        click.echo(line)
    for problem in found.problems:
        click.echo(f"to do: {problem}")
    click.echo(f"{output} written; next: datamask plan runs/mine --config {output} --dry-run")


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=Path())
def doctor(folder: Path) -> None:
    """Check this machine: device, disk of FOLDER, Hub, Prefect server.

    The exit status is 1 if something must be fixed before a run.
    """
    from datamask.execution.machine import checks

    failed = False
    for check in checks(folder):
        failed |= check.state == "failed"
        click.echo(f"{check.state:8s} {check.name:12s} {check.text}")
    sys.exit(int(failed))


COMMANDS = (init, doctor)
