"""`datamask deploy`: the flows on a Prefect server, from a checkout or an installed package."""

from __future__ import annotations

import importlib
from pathlib import Path

import click

import datamask
from datamask.errors import SettingsError


@click.command()
@click.option("--pool", metavar="NAME", help="One work pool for all, not cpu and gpu.")
@click.option("--server", metavar="URL", help="The server; default: as in Prefect's settings.")
@click.option("--image", metavar="NAME:TAG", help="The image, for pools with containers.")
def deploy(pool: str | None, server: str | None, image: str | None) -> None:
    """Register the flows with a Prefect server.

    Registers pools, deployments and automations. Workers run the flows in the folder of this
    command. Pools that are absent are created as process pools. Schedules, limits and automations
    that were changed on the server stay as they are.

    \b
    datamask deploy --server http://127.0.0.1:4200
    prefect worker start --pool cpu
    prefect deployment run rebuild/local --param root=runs/mine ...
    """  # noqa: D301 - click wants the character itself
    # An installed package has the flows beside the library, under a name of their own.
    installed = (Path(datamask.__file__).parents[1] / "datamask_flows").is_dir()
    package = "datamask_flows." if installed else ""
    try:
        flows = importlib.import_module(f"{package}flows.orchestration.deploying")
    except ModuleNotFoundError as error:
        remedy = 'pip install "datamask-pipeline[prefect]"'
        raise SettingsError(f"deploy: no module {error.name}; `{remedy}` installs it") from None
    for line in flows.deploy(pool, server, image):
        click.echo(line)


COMMANDS = (deploy,)
