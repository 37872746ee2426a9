"""Packed linear layers give the outputs of the layers that they replace."""

from __future__ import annotations

import copy

import pytest
import torch

from datamask.embedding.packing import PackedLinear, pack_linear_layers


class Feed(torch.nn.Module):
    """A GELU after one linear layer, as in BERT, or between two, as in other models."""

    def __init__(self, layers: int) -> None:
        """With so many layers."""
        from transformers.activations import GELUActivation

        super().__init__()
        self.first = torch.nn.Linear(8, 8, bias=layers == 1)
        self.intermediate_act_fn: torch.nn.Module = GELUActivation()
        self.second = torch.nn.Linear(8, 8) if layers == 2 else torch.nn.Identity()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Compute."""
        found: torch.Tensor = self.second(self.intermediate_act_fn(self.first(inputs)))
        return found


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="PyTorch does not use MKL here")
@pytest.mark.parametrize("layers", [1, 2])
def test_outputs_stay(layers: int) -> None:
    """The exact GELU is computed with the layer only where it must follow that layer."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(Feed(layers), torch.nn.Linear(8, 3))
    packed = copy.deepcopy(model)
    pack_linear_layers(packed, 64)
    assert sum(isinstance(part, PackedLinear) for part in packed.modules()) == layers + 1
    assert sum(type(part).__name__ == "GELUActivation" for part in packed.modules()) == layers - 1
    with torch.inference_mode():
        for shape in ((5, 8), (2, 70, 8)):
            inputs = torch.randn(shape)
            assert torch.allclose(packed(inputs), model(inputs), atol=1e-6)
