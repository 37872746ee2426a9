"""Both estimators' directions against gradients that owe them nothing."""

import itertools

import numpy as np
import pytest
import torch

from datamask.config.compute import Compute
from datamask.learning.data import add_moments, moments_of, zero_moments
from datamask.learning.learner import shard_data
from datamask.learning.moment_gradient import moment_gradient, quadratic_form
from datamask.learning.policy import gumbel_top_s
from datamask.learning.policy_gradient import advantages, batch_shape, direction, learning_rate
from datamask.objectives.disf import DiSF
from datamask.objectives.facility_location import FacilityLocation
from datamask.objectives.pairwise import PairwiseSimilarity
from datamask.objectives.quality import Quality
from datamask.objectives.weighted import WeightedObjective, WeightedTerm


def small(make_shard, num_documents=10, dimension=5):
    """A shard small enough to enumerate, as data on the CPU."""
    features, quality = make_shard(num_documents, dimension, 3, num_clusters=3)
    return shard_data(features, quality, {}, Compute(device="cpu"))


def centred(values):
    """Values less their mean: the part of a gradient that a fixed size leaves."""
    return values - values.mean()


def cosine(one, other):
    """Cosine of two vectors."""
    return float(torch.nn.functional.cosine_similarity(one.double(), other.double(), dim=0))


def independent_expectation(values_M, masks_MN, inclusion_N):
    """E f under independent inclusion, differentiable, by enumeration."""
    chances = torch.where(masks_MN, inclusion_N, 1 - inclusion_N).prod(1)
    return (chances * values_M).sum()


def test_pairwise_and_quality_gradients_are_exact(make_shard):
    """For quadratic terms the mean field is exact: enumeration gives the same."""
    data = small(make_shard)
    terms = (WeightedTerm(Quality(), 0.5), WeightedTerm(PairwiseSimilarity(), 0.5, 0.1))
    inclusion = torch.linspace(0.1, 0.7, 10, dtype=torch.float64)
    inclusion = inclusion / inclusion.sum() * 4
    masks = torch.tensor(list(itertools.product([False, True], repeat=10)))
    features, quality = data.features.astype(np.float64), data.quality_N.double()
    sums = masks.double() @ torch.tensor(features)
    # Size held at S = 4, as it is in the learner: only the sums vary with the mask.
    pairwise = (sums.square().sum(1) - masks.sum(1)) / 12
    values = 0.5 * (masks.double() @ quality) / 4 - 5.0 * pairwise
    leaf = inclusion.clone().requires_grad_()
    exact = torch.autograd.grad(independent_expectation(values, masks, leaf), leaf)[0]
    moments = moments_of(data, inclusion.float(), 1)
    found = moment_gradient(terms, moments, data, slice(None), inclusion.float())
    torch.testing.assert_close(centred(found).double(), centred(exact), rtol=1e-3, atol=1e-4)


def disf_of(features_ND, weights_N):
    """DiSF of weighted documents in float64, from the definition."""
    count = weights_N.detach().sum()
    mean = weights_N @ features_ND / count
    second = features_ND.T @ (features_ND * weights_N[:, None])
    covariance = (second - count * torch.outer(mean, mean)) / (count - 1)
    deviation = covariance.diagonal().sqrt() + 1e-8
    correlation = covariance / torch.outer(deviation, deviation)
    return (correlation.square().sum() - correlation.diagonal().square().sum()) / 10000


def test_disf_gradient_matches_autograd_through_p(make_shard):
    """Σ over documents of p x and p x xᵀ, differentiated by autograd, gives the same slopes."""
    data = small(make_shard, 400, 6)
    inclusion = torch.rand(400, generator=torch.Generator().manual_seed(0)) * 0.5
    features = torch.tensor(data.features, dtype=torch.float64)
    leaf = inclusion.double().requires_grad_()
    value = disf_of(features, leaf)
    exact = torch.autograd.grad(-value, leaf)[0]
    moments = moments_of(data, inclusion, 2)
    terms = (WeightedTerm(DiSF(), 1.0),)
    found = moment_gradient(terms, moments, data, slice(None), torch.full((400,), 0.5))
    torch.testing.assert_close(found.double(), exact, rtol=1e-3, atol=1e-8)


@pytest.mark.parametrize("metric", [PairwiseSimilarity(), FacilityLocation(), DiSF()])
def test_policy_gradient_points_along_the_true_gradient(make_shard, metric):
    """The mean of many groups is the gradient of the expectation by enumeration of orders."""
    data = small(make_shard, 7, 4)
    joint = WeightedObjective((WeightedTerm(Quality(), 0.5, 0.3), WeightedTerm(metric, 0.5, 0.02)))
    batch = data.everything()
    logits = torch.linspace(-0.6, 0.6, 7)
    orders = torch.tensor(list(itertools.permutations(range(7), 3)))
    masks = torch.zeros(len(orders), 7, dtype=torch.bool).scatter_(1, orders, True)
    rewards = joint.values(masks, batch).double()
    chances = torch.ones(len(orders), dtype=torch.float64)
    left = torch.ones(len(orders), dtype=torch.float64)
    softmax = torch.softmax(logits.double(), 0)
    for place in range(3):
        chances = chances * softmax[orders[:, place]] / left
        left = left - softmax[orders[:, place]]
    # The published score is Σ ln softmax(L) over the mask, so its gradient is E[(f − E f) m].
    exact = (chances * (rewards - (chances * rewards).sum())) @ masks.double()
    generator = torch.Generator().manual_seed(0)
    total = torch.zeros(7)
    for _ in range(100):
        drawn = gumbel_top_s(logits, 3, 1000, generator)
        total += direction(drawn, joint.values(drawn, batch))
    assert cosine(total, exact) > 0.99


def test_steps_of_policy_gradient():
    """Advantages by hand; equal rewards give none; a linear rate; batches with their share of S."""
    found = advantages(torch.tensor([1.0, 2.0, 3.0]))
    torch.testing.assert_close(found, torch.tensor([-1.0, 0.0, 1.0]))
    assert not direction(torch.rand(8, 5) > 0.5, torch.full((8,), 0.1)).any()
    assert [learning_rate(step, 11, 10.0, 1.0) for step in (0, 5, 10)] == [10.0, 5.5, 1.0]
    assert batch_shape(10_000, 1000, 0.1) == (1000, 100)
    assert batch_shape(12, 4, 0.1) == (12, 4)  # small shards are used whole


@pytest.mark.parametrize("width", [100, 300])
def test_symmetric_products_are_those_of_whole_matrices(make_shard, width):
    """In more blocks of rows and columns than one, of all documents and of some."""
    features, quality = make_shard(2500, width, 0)
    data = shard_data(features, quality, {}, Compute(device="cpu"))
    random = np.random.default_rng(0)
    rows = np.sort(random.permutation(2500)[:1700])
    weights = random.normal(size=1700)
    of_rows = data.rows(torch.from_numpy(rows))
    np.testing.assert_array_equal(of_rows, features[rows])
    found = add_moments(
        zero_moments(data, 2), data, torch.from_numpy(rows), torch.from_numpy(weights).float()
    )
    some = features[rows].astype(np.float64)
    np.testing.assert_allclose(found.second_DD, some.T * weights @ some, atol=1e-4)
    np.testing.assert_allclose(found.first_D, weights @ some, atol=1e-4)
    np.testing.assert_array_equal(found.second_DD, found.second_DD.T)
    square = random.normal(size=(width, width))
    symmetric = (square + square.T).astype(np.float32)
    forms = quadratic_form(data, torch.from_numpy(symmetric))(of_rows)
    np.testing.assert_allclose(forms, (some @ symmetric * some).sum(1), atol=1e-4)
