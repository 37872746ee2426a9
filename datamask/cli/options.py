"""Arguments and options shared by several commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from datamask.storage.location import Root


config_option = click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="YAML file of settings.",
)
set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="One setting, e.g. selection.ratio=0.1 or compute.workers=4. May be repeated.",
)
format_option = click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    show_default=True,
    help="Format of the rows; json prints one object per line.",
)


class RunPlace(click.ParamType[Any]):
    """A folder, or a URL, which stays a string because a path would drop a slash."""

    name = "run"

    def convert(self, value: Any, param: Any, ctx: Any) -> Root:
        """See `click.ParamType.convert`."""
        return str(value) if "://" in str(value) else Path(value)


root_argument = click.argument("root", metavar="RUN", type=RunPlace())
