"""Read model.json of a mask model: all that a run needs of it before it reads vectors."""

from __future__ import annotations

import shlex
from typing import Any

from datamask.errors import CorruptFileError, InputError, RunError, one_line
from datamask.runs.run import Run, digest
from datamask.source.opening import open_binary
from datamask.storage.contents import parse_json

ABOUT, TENSORS = "model.json", "model.safetensors"
FORMAT = "datamask-mask-1"


def read_about(folder: str) -> dict[str, Any]:
    """Read the model.json of a mask model.

    Args:
        folder: `RUN/mask_model`, a copy of it, or its URL.

    Raises:
        InputError: there is none.
        RunError: the run has no such model; the message says why.
        CorruptFileError: it is damaged.
    """
    path = f"{folder.rstrip('/')}/{ABOUT}"
    try:
        with open_binary(path) as file:
            text = file.read()
    except InputError as error:
        raise InputError(
            f"no mask model ({one_line(error)}); finish the run that learns it",
            path=folder,
        ) from None
    try:
        about: dict[str, Any] = parse_json(text)
        if about.pop("digest") != digest(about) or about["format"] != FORMAT:
            raise ValueError("changed by hand, or of another format")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise corrupt(path, error) from None
    if about["unavailable"]:
        raise RunError(f"{folder}: the run has no mask model: {about['unavailable']}")
    return about


def corrupt(path: str, error: Exception) -> CorruptFileError:
    """Return the error about a damaged file of a model."""
    return CorruptFileError(
        f"{path}: corrupt ({one_line(error)}); delete it and rebuild its run, or copy it again"
    )


def judged_by(run: Run) -> dict[str, Any] | None:
    """Return the planned model.json that judges the run's documents; None if the run learns.

    Raises:
        RunError: the model has changed since the run was planned; and as in `read_about`.
    """
    folder = run.settings.selection.mask_model
    if not folder:
        return None
    about = read_about(folder)
    if digest(about) != run.pinned_revisions.get("quality:mask_model"):
        raise RunError(
            f"selection.mask_model: {folder} has changed since the run was planned; restore it, or "
            f"`datamask rebuild {shlex.quote(run.address)}` judges by the new one"
        )
    return about
