"""Arguments and options shared by several commands."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from datamask.storage.location import Root


def complete_setting(context: object, parameter: object, incomplete: str) -> list[str]:
    """Keys of settings that begin so, for the shell; a value is not completed."""
    from datamask.config.reference import descriptions

    return [key for key in descriptions() if key.startswith(incomplete) and "[" not in key]


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
    shell_complete=complete_setting,
    help="One setting, e.g. selection.ratio=0.1 or compute.workers=4. May be repeated.",
)
output_option = partial(
    click.option,
    *("-o", "--output"),
    type=click.Path(dir_okay=False, path_type=Path),
    show_default=True,
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

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        """Folders."""
        return [CompletionItem(incomplete, type="dir")]


root_argument = click.argument("root", metavar="RUN", type=RunPlace())
