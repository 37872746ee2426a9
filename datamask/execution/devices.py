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

from datamask.config.compute import Compute
from datamask.errors import SettingsError
from datamask.storage.file_locks import first_free


@contextlib.contextmanager
def own_device(compute: Compute) -> Iterator[Compute]:
    """Yield the settings with the device that is this unit's alone meanwhile.

    Raises:
        SettingsError: this machine has no such device.
    """
    check_device(compute)
    if compute.device not in ("auto", "cuda"):
        yield compute
        return
    names = visible_gpus()
    if not names:
        yield compute.model_copy(update={"device": "cpu"})
        return
    with gpu_slot(names[: compute.gpus]) as index:
        yield compute.model_copy(update={"device": f"cuda:{index}"})


def check_device(compute: Compute) -> None:
    """Check that this machine has the device that is asked for.

    Raises:
        SettingsError: it has not.
    """
    if compute.device_kind != "cuda":
        return
    count = len(visible_gpus())
    _, _, index = compute.device.partition(":")
    if int(index or 0) >= count:
        has = f"CUDA devices 0 to {count - 1}" if count else "no CUDA device"
        raise SettingsError(
            f"compute.device: {compute.device} asked for, this machine has {has}; use auto or cpu"
        )


@contextlib.contextmanager
def gpu_slot(names: list[str], folder: Path | None = None) -> Iterator[int]:
    """Hold one of the GPUs so named, on this machine; yields its index."""
    folder = folder or Path(tempfile.gettempdir()) / f"datamask-gpus-{os.getuid()}"
    with first_free([folder / f"{name}.lock" for name in names]) as index:
        yield index


def visible_gpus() -> list[str]:
    """The identities of the GPUs that this process sees."""
    import torch

    if not torch.cuda.is_available():
        return []
    return [
        str(torch.cuda.get_device_properties(index).uuid)
        for index in range(torch.cuda.device_count())
    ]
