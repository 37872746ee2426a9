"""Arguments and options shared by several commands, and the settings that they give."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from datamask.config.compute import Compute
from datamask.config.loading import load_settings
from datamask.config.reference import descriptions
from datamask.config.settings import Settings
from datamask.errors import SettingsError
from datamask.planning.plan import Change
from datamask.runs.opening import open_run, run_exists
from datamask.storage.location import Root


def complete_setting(context: object, parameter: object, incomplete: str) -> list[str]:
    """List keys of settings that begin so, for the shell; a value is not completed."""
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
    """The place of a run on a command line: a folder becomes a path, a URL stays text.

    As a path, a URL would lose a slash, and an empty name would be the current folder.
    """

    name = "run"

    def convert(self, value: Any, param: Any, ctx: Any) -> Root:
        """See `click.ParamType.convert`."""
        return str(value) if "://" in str(value) or not value else Path(value)

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        """Complete folders."""
        return [CompletionItem(incomplete, type="dir")]


root_argument = click.argument("root", metavar="RUN", type=RunPlace())


def asked_for(
    root: Root, config: Path | None, overrides: tuple[str, ...], origin: Root | None = None
) -> tuple[Settings | Change | None, Compute]:
    """Return settings for `plan_run`, with the compute settings.

    The first is None without changes, and a function of the run's settings if only --set changes
    them.
    """
    if config is not None:
        return load_settings(config, overrides)
    _, compute = load_settings(None, overrides, own_settings(root, origin))
    if all(item.startswith("compute.") for item in overrides):
        return None, compute
    # `plan_run` calls it again under the lock, because the settings may change until then.
    return lambda own: load_settings(None, overrides, own)[0], compute


def accept_only(groups: tuple[str, ...], overrides: tuple[str, ...]) -> None:
    """Raise SettingsError for a --set outside some groups, such as `compute.`."""
    for item in overrides:
        if not item.startswith(groups):
            accepted = " and ".join(f"{group}*" for group in groups)
            raise SettingsError(
                f"--set {item}: only {accepted} here; `datamask rebuild` changes other settings"
            )


def own_settings(root: Root, origin: Root | None = None) -> Settings | None:
    """Return the settings that --set changes without --config; None for the defaults."""
    if run_exists(root):
        return open_run(root).settings
    return None if origin is None else open_run(origin).settings
