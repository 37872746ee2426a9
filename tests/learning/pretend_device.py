"""An accelerator that is not there: arithmetic of the CPU, and a GPU's refusal to mix devices.

`Accelerator()` is a context in which `DEVICE` can be used as any torch device. A tensor on it wraps
the host's tensor with the values. Every operation of the tensor library comes through `_dispatch`,
which holds it to CUDA's rules before the host computes it: operands on two devices are refused, but
for single numbers, for indices from the host, and for copies. What numpy or the host's random
numbers may not have of a GPU they may not have here. Speed, memory and kernels are not imitated.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

NAME = "pretend"
SINGLE_NUMBERS = ("index_put", "fill", "masked_fill")
"""Operations, beside pointwise ones, to which CUDA lets the host give a tensor of no dimension."""

backend_registration._setup_privateuseone_for_python_backend(NAME)
DEVICE = torch.device(NAME, 0)


class MixedDevicesError(RuntimeError):
    """Raised where a GPU would refuse."""


class _Remote(Tensor):
    """A tensor on the pretended device."""

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor) -> _Remote:
        """Wrap the host's tensor that has the values."""
        made: _Remote = torch.Tensor._make_wrapper_subclass(
            cls,
            host.shape,
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=DEVICE,
        )
        made.host = host
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Between tensors of the device."""
        return _dispatch(func, args, kwargs or {})


class Accelerator(TorchDispatchMode):
    """While it lasts, tensors can be made on the device and moved to it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Of every operation."""
        return _dispatch(func, args, kwargs or {})


def _dispatch(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    remote = any(isinstance(tensor, _Remote) for tensor in tensors)
    target = kwargs.get("device")
    to_remote = remote if target is None else torch.device(target).type == NAME
    if remote:
        _check(func, args, tensors)
    if (remote or to_remote) and kwargs.get("generator") is not None:
        raise MixedDevicesError(f"{func}: random numbers of the host, made on the device")
    plain_args, plain = tree_map_only(_Remote, lambda tensor: tensor.host, (args, kwargs))
    if target is not None and to_remote:
        plain["device"] = torch.device("cpu")
    result = func(*plain_args, **plain)
    writes = [given.alias_info and given.alias_info.is_write for given in func._schema.returns]
    if any(writes):
        return args[0]
    return tree_map_only(Tensor, _Remote, result) if to_remote else result


def _check(func: Any, args: Any, tensors: list[Tensor]) -> None:
    """Hold an operation on tensors of the device to what CUDA allows.

    Raises:
        MixedDevicesError: it would be refused.
    """
    name = func.overloadpacket.__name__.strip("_")
    hosts = [tensor for tensor in tensors if not isinstance(tensor, _Remote)]
    if name in ("copy", "to_copy"):
        return
    if name in ("index", "index_put", "index_put_impl") and isinstance(args[0], _Remote):
        indices = {id(index) for index in args[1] if index is not None}
        hosts = [tensor for tensor in hosts if id(tensor) not in indices]
    if torch.Tag.pointwise in func.tags or name.removesuffix("_impl") in SINGLE_NUMBERS:
        hosts = [tensor for tensor in hosts if tensor.dim()]
    if hosts:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in hosts)
        raise MixedDevicesError(f"{func}: the device's tensors meet the host's of shape {shapes}")
