"""What is promised of any model's vectors, against a stand-in that can misbehave."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from datamask.config import Embedding
from datamask.embedding.sentence_transformer import embed
from datamask.errors import InputError

SETTINGS = Embedding(dimension=2, prefix="")


class Model:
    """Gives (length, 1) per text; NaN for texts with an x, in a batch or always."""

    def __init__(self, always: bool) -> None:
        self.always = always
        self.dtype = torch.float16

    def to(self, dtype):
        """Take the precision."""
        self.dtype = dtype

    def encode(self, texts, **options):
        """Vectors by rule."""
        found = torch.tensor([[float(len(t)), 1.0] for t in texts])
        bad = [("x" in t) and (self.always or len(texts) > 1) for t in texts]
        found[torch.tensor(bad)] = float("nan")
        return found


TEXTS = ["four", "a", "xx", "three"]


def test_order_and_retry():
    """Rows come back in the texts' order, and one that fails in a batch is embedded alone."""
    found = embed(Model(False), TEXTS, SETTINGS, 4, list("pqrs"))
    assert np.allclose(found[:, 0] / found[:, 1], [4, 1, 2, 5])


def test_lasting_nan_is_named():
    """A document without a finite vector even alone is named, and only that one."""
    with pytest.raises(InputError, match="document r, alone"):
        embed(Model(True), TEXTS, SETTINGS, 4, list("pqrs"))
