"""The settings of a command, applied to those of the run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datamask.config.compute import Compute
    from datamask.config.settings import Settings
    from datamask.planning.plan import Change
    from datamask.storage.location import Root


def asked_for(
    root: Root, config: Path | None, overrides: tuple[str, ...], origin: Root | None = None
) -> tuple[Settings | Change | None, Compute]:
    """Settings for `plan_run`, with the compute settings.

    The first is None without changes, and a function of the run's settings if only --set changes
    them.
    """
    from datamask.config.loading import load_settings

    settings, compute = load_settings(config, overrides, own_settings(root, config, origin))
    if config is not None:
        return settings, compute
    if all(item.startswith("compute.") for item in overrides):
        return None, compute
    # `plan_run` calls it again under the lock, because the settings may change until then.
    return lambda own: load_settings(None, overrides, own)[0], compute


def accept_only(groups: tuple[str, ...], overrides: tuple[str, ...]) -> None:
    """Raise SettingsError for a --set outside some groups, such as `compute.`."""
    from datamask.errors import SettingsError

    for item in overrides:
        if not item.startswith(groups):
            accepted = " and ".join(f"{group}*" for group in groups)
            raise SettingsError(
                f"--set {item}: only {accepted} here; `datamask rebuild` changes other settings"
            )


def own_settings(root: Root, config: Path | None, origin: Root | None = None) -> Settings | None:
    """The settings to which --set applies; None for the defaults."""
    from datamask.runs.opening import open_run, run_exists

    if config is not None:
        return None
    if run_exists(root):
        return open_run(root).settings
    return None if origin is None else open_run(origin).settings
