"""Fewer documents than dimensions: DiSF by products of documents, against the definition."""

import numpy as np
import pytest
import torch

from datamask.config.compute import Compute
from datamask.config.selection import Selection
from datamask.learning import learner
from datamask.learning.data import by_document, moments_of
from datamask.learning.moment_gradient import along, joint_value, slopes
from datamask.objectives.disf import DiSF, DiSFOfFew
from datamask.objectives.weighted import WeightedTerm
from tests.learning.test_gradients import centred, disf_of


def float16_with_copies(make_shard, num_documents, dimension):
    """A shard with a mean, half of which nearly copies the other half; its rank is below N."""
    features, quality = make_shard(num_documents, dimension, 1, num_clusters=3)
    half = num_documents // 2
    features[half : 2 * half] = features[:half] + 1e-3 * features[::-1][:half]
    features[-1] = features[0]
    features += 0.1
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    return features.astype(np.float16), quality


@pytest.mark.parametrize("is_mask", [False, True])
def test_value_and_gradient_are_those_of_the_definition(make_shard, is_mask):
    """Of a mask and of probabilities, for documents with a weight and without."""
    features, quality = float16_with_copies(make_shard, 40, 70)
    dense = learner.shard_data(features, quality, {}, Compute(device="cpu"))
    data, terms = by_document(dense, (WeightedTerm(DiSF(), 1.0),))
    assert isinstance(terms[0].objective, DiSFOfFew)
    weights = torch.rand(40, generator=torch.Generator().manual_seed(0))
    weights = (weights > 0.7).float() if is_mask else weights
    leaf = weights.double().requires_grad_()
    value = disf_of(torch.tensor(features, dtype=torch.float64), leaf)
    exact = torch.autograd.grad(-value, leaf)[0]
    moments = moments_of(data, weights, 2)
    assert moments.second_DD.shape == (40,)
    assert float(joint_value(terms, moments)) == pytest.approx(-value.item(), rel=1e-5)
    found = along(slopes(terms, moments), data)
    scale = float(exact.std())
    torch.testing.assert_close(centred(found).double(), centred(exact), rtol=0, atol=1e-3 * scale)


@pytest.mark.parametrize("number", [50, 120])
@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_selections_are_those_of_whole_matrices(make_shard, monkeypatch, number, weight):
    """With every swap and with swaps of blocks; the same logits up to rounding."""
    features, quality = float16_with_copies(make_shard, number, 150)
    selection = Selection(metric="disf", quality_weight=weight)

    def learned():
        return learner.learn_mask(features, quality, selection, number // 5, seed=0)

    few = learned()
    monkeypatch.setattr(learner, "by_document", lambda data, terms: (data, terms))
    whole = learned()
    np.testing.assert_array_equal(few.selected, whole.selected)
    np.testing.assert_allclose(few.logits, whole.logits, atol=2e-3 * whole.logits.std())
    assert few.metrics["objective"] == pytest.approx(whole.metrics["objective"], rel=1e-4)
