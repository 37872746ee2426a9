"""Assign a GPU to each unit of work: one GPU per unit.

With device `cuda` (or `auto` if there is CUDA) every shard takes the first free GPU that this
process sees, and waits while none is free. Processes of one machine share these slots, and the
kernel releases a slot when its holder dies. `cuda:1` names a GPU and takes no slot.
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
    """Yield the settings with a device that no other unit uses. Errors are as in `check_device`."""
    check_device(compute)
    if compute.device not in ("auto", "cuda"):
        yield compute
        return
    names = visible_gpus()
    if not names:
        yield compute.model_copy(update={"device": "cpu"})
        return
    folder = Path(tempfile.gettempdir()) / f"datamask-gpus-{os.getuid()}"
    with first_free([folder / f"{name}.lock" for name in names]) as index:
        yield compute.model_copy(update={"device": f"cuda:{index}"})


def check_device(compute: Compute) -> None:
    """Check that this machine has the requested device, and the arithmetic of `compute.matmul`.

    Raises:
        SettingsError: it does not.
    """
    if compute.matmul == "bfloat16":
        _check_bfloat16(compute)
    if compute.device_kind != "cuda":
        return
    count = len(visible_gpus())
    _, _, index = compute.device.partition(":")
    if int(index or 0) >= count:
        has = f"CUDA devices 0 to {count - 1}" if count else "no CUDA device"
        raise SettingsError(
            f"compute.device: {compute.device} is set, but this machine has {has}; use auto or cpu"
        )


def _check_bfloat16(compute: Compute) -> None:
    import torch

    from datamask.learning.data import multiplies_bfloat16

    kind = "cuda" if compute.device_kind != "cpu" and visible_gpus() else "cpu"
    if not multiplies_bfloat16(torch.device(kind)):
        raise SettingsError(
            "compute.matmul: bfloat16 is set, but this machine's device only emulates it, which "
            "takes far longer than float32 (about 70 times on a CPU); use auto or float32"
        )


def usable_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def visible_gpus() -> list[str]:
    """Return the identities of the GPUs that this process sees."""
    from torch import cuda

    count = cuda.device_count() if cuda.is_available() else 0
    return [str(cuda.get_device_properties(index).uuid) for index in range(count)]
