"""Try custom objectives at planning, since they may fail; errors name them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch

from datamask.errors import DatamaskError, SettingsError, one_line
from datamask.objectives.protocol import Batch, Objective

Result = TypeVar("Result")

# Chosen by experiment: docs/log.md#memory.
DOCUMENTS, MASKS = 32, 2


def try_objective(objective: Objective, dimension: int, scores: Iterable[str]) -> None:
    """Evaluate an objective on random documents, half of them selected.

    *dimension* is D, the width of an embedding; *scores* names the scores that it may read.

    Raises:
        SettingsError: it fails, or does not give one finite number per mask.
    """
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(DOCUMENTS, dimension, generator=generator)
    features /= features.norm(dim=1, keepdim=True)
    named = {name: torch.rand(DOCUMENTS, generator=generator) for name in scores}
    quality = torch.rand(DOCUMENTS, generator=generator)
    masks = torch.zeros(MASKS, DOCUMENTS, dtype=torch.bool)
    for mask in masks:
        mask[torch.randperm(DOCUMENTS, generator=generator)[: DOCUMENTS // 2]] = True
    try:
        values = objective.values(masks, Batch(features, quality, named))
    except Exception as error:
        raise failed(objective, error) from error
    if not isinstance(values, torch.Tensor) or values.shape != (MASKS,):
        shape = list(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
        raise SettingsError(
            f"objective `{objective.name}`: values() gave {shape} for {MASKS} masks; it must "
            f"return a tensor of shape [{MASKS}]"
        )
    if not bool(values.isfinite().all()):
        raise SettingsError(
            f"objective `{objective.name}`: {values.tolist()} on random documents; it must give "
            "finite numbers"
        )


def tried(objective: Objective, work: Callable[..., Result], *given: object) -> Result:
    """Call *work*, which evaluates an objective that may be the user's.

    Raises:
        SettingsError: the objective raised anything but an out-of-memory error.
    """
    try:
        return work(*given)
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        raise failed(objective, error) from error


def failed(objective: Objective, error: Exception) -> DatamaskError:
    """Return the error to report for an objective that raised."""
    reason = one_line(f"{type(error).__name__}: {error}")
    return SettingsError(f"objective `{objective.name}`: failed ({reason}); fix its class")
