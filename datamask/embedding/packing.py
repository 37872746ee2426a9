"""Weights in oneDNN's blocked layout, for float32 on CPUs where PyTorch would multiply with MKL.

The vectors change by rounding alone. Speed: benchmarks/results/embedding.md.
"""

from __future__ import annotations

from typing import Any

import torch

_OPERATORS = ("_linear_pointwise", "_reorder_linear_weight")


class PackedLinear(torch.nn.Module):
    """A linear layer for inference, with GELU computed in the same pass if it follows.

    Args:
        linear: the layer; float32.
        rows: expected number of rows of the input, for which oneDNN chooses the layout.
        activation: `none` or `gelu`.
    """

    def __init__(self, linear: torch.nn.Linear, rows: int, activation: str) -> None:
        super().__init__()
        # Not a parameter: a tensor in this layout cannot be moved or converted.
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), rows)
        self.bias = linear.bias
        self.activation = activation

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The layer's output; shape ... x outputs."""
        multiply = torch.ops.mkldnn._linear_pointwise
        found: torch.Tensor = multiply(inputs, self.weight, self.bias, self.activation, [], "none")
        return found


def pack_linear_layers(model: torch.nn.Module, rows: int) -> None:
    """Replace the linear layers of a float32 model on a CPU, in place, if oneDNN is there."""
    backends: Any = torch.backends
    if not (backends.mkl.is_available() and backends.mkldnn.is_available()):
        return
    # Operators without a promise of PyTorch's: another version may not have them.
    if not all(hasattr(torch.ops.mkldnn, name) for name in _OPERATORS):
        return
    for parent in list(model.modules()):
        children = dict(parent.named_children())
        layers: Any = {name: one for name, one in children.items() if type(one) is torch.nn.Linear}
        # As in BERT: one layer, then the exact GELU.
        activation: Any = getattr(parent, "intermediate_act_fn", None)
        fused = len(layers) == 1 and getattr(activation, "act", None) is torch.nn.functional.gelu
        for name, layer in layers.items():
            setattr(parent, name, PackedLinear(layer, rows, "gelu" if fused else "none"))
        if fused:
            parent.intermediate_act_fn = torch.nn.Identity()
