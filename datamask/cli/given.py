"""The settings that a command was given, on top of the run's own."""

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
    """What to make, for `plan_run`: settings, how they follow from the run's own, or these."""
    from datamask.config.loading import load_settings

    settings, compute = load_settings(config, overrides, own_settings(root, config, origin))
    if config is not None:
        return settings, compute
    if all(item.startswith("compute.") for item in overrides):
        return None, compute
    # Once more under the lock: what was read here may have been changed by then.
    return lambda own: load_settings(None, overrides, own)[0], compute


def own_settings(root: Root, config: Path | None, origin: Root | None = None) -> Settings | None:
    """The settings that --set changes; None for the defaults."""
    from datamask.runs.opening import open_run, run_exists

    if config is not None:
        return None
    if run_exists(root):
        return open_run(root).settings
    return None if origin is None else open_run(origin).settings
