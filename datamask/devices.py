"""Which GPU a unit of work runs on: each has one to itself, at most `compute.gpus` at once.

With device `cuda` (or `auto` where there is CUDA) every shard takes the first free of the GPUs
this process sees, and waits while none is. Slots are held across processes of one machine and let
go of by the kernel when their holder dies. `cuda:1` names a GPU, and is taken as it is.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from datamask.config import Compute
from datamask.errors import SettingsError
from datamask.locks import first_free


@contextlib.contextmanager
def own_device(compute: Compute) -> Iterator[Compute]:
    """Yield the settings with the device that is this unit's alone meanwhile.

    Raises:
        SettingsError: CUDA is asked for and there is none.
    """
    if compute.device not in ("auto", "cuda"):
        yield compute
        return
    names = _visible_gpus()
    if not names:
        if compute.device == "cuda":
            raise SettingsError("compute.device: cuda asked for, this machine has no CUDA device")
        yield compute.model_copy(update={"device": "cpu"})
        return
    with gpu_slot(names[: compute.gpus]) as index:
        yield compute.model_copy(update={"device": f"cuda:{index}"})


@contextlib.contextmanager
def gpu_slot(names: list[str], folder: Path | None = None) -> Iterator[int]:
    """Hold one of the GPUs so named, on this machine; yields its index."""
    folder = folder or Path(tempfile.gettempdir()) / f"datamask-gpus-{os.getuid()}"
    with first_free([folder / f"{name}.lock" for name in names]) as index:
        yield index


def _visible_gpus() -> list[str]:
    import torch

    if not torch.cuda.is_available():
        return []
    return [
        str(torch.cuda.get_device_properties(index).uuid)
        for index in range(torch.cuda.device_count())
    ]
