"""A trained model's scores, compared with sums of its chances token by token."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from datamask.config.compute import Compute
from datamask.evaluation import training


class Bigrams(torch.nn.Module):
    """A model that knows the token before, and where it is in its sequence."""

    def __init__(self, vocabulary: int, context: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        table = torch.randn(context, vocabulary, vocabulary, generator=generator)
        self.table = torch.nn.Parameter(table)

    def forward(self, input_ids: torch.Tensor) -> Any:
        """Logits of the next token."""
        places = torch.arange(input_ids.shape[1])  # an index beyond the context fails
        return SimpleNamespace(logits=self.table[places, input_ids])


@pytest.mark.parametrize("bytes_per_logit", [1, 2**40])
def test_a_text_is_scored_whole_in_sequences(monkeypatch, bytes_per_logit):
    """Each token is predicted by its place and the token before it; all at once, and one by one."""
    monkeypatch.setattr(training, "BYTES_PER_LOGIT", bytes_per_logit)
    separator, context = 9, 4
    model, generator = Bigrams(separator + 1, context), np.random.default_rng(0)
    lengths, prefixes = [1, 3, 4, 5, 8, 11, 9], [0, 0, 2, 2, 1, 0, 6]
    rows = [generator.integers(0, separator, length).tolist() for length in lengths]
    held_out = pa.table({"tokens": rows, "prefix": prefixes})
    bits = training.score(model, held_out, separator, context, Compute(device="cpu"))
    chances = model.table.detach().softmax(2).numpy()
    for row, prefix, found in zip(rows, prefixes, bits, strict=True):
        expected = 0.0
        for place, (before, token) in enumerate(zip([separator, *row], row, strict=False)):
            if place >= prefix:
                expected -= np.log2(chances[place % context, before, token])
        assert found == pytest.approx(expected, rel=1e-5)
