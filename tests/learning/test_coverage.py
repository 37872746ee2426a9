"""Greedy in blocks against greedy as the textbook has it, and blocks as a partition."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.sparse import csc_array

from datamask.config.compute import Compute
from datamask.config.selection import Selection
from datamask.learning import coverage
from datamask.learning.coverage import greedy_gains, sparse_greedy_gains
from datamask.learning.learner import learn_mask, shard_data
from datamask.learning.partition import similar_blocks

pytestmark = pytest.mark.usefixtures("roughly")


def naive_greedy(similarity, linear_gain, weight, depth):
    """Evaluate the whole objective for every candidate of every pick; documents in order."""

    def value(chosen):
        best = similarity[:, chosen].max(1) if chosen else np.full(len(similarity), -1.0)
        return weight * (best + 1).sum() + linear_gain[chosen].sum()

    chosen, gains = [], []
    for _ in range(depth):
        left = [row for row in range(len(similarity)) if row not in chosen]
        found = [value([*chosen, row]) - value(chosen) for row in left]
        best = int(np.argmax(found))
        # Sums in float32 cannot tell closer gains apart.
        assume(len(found) == 1 or np.diff(np.sort(found))[-1] > 1e-4)
        gains.append(found[best])
        chosen.append(left[best])
    return chosen, gains


def greedy_case(num_documents, seed, linear_gain_scale):
    """Similarities, other gains, and a number of documents to take; no two gains are equal."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(num_documents, 6))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    # Two documents that stand only for each other could be taken in any order.
    linear_gain = linear_gain_scale * random.normal(size=num_documents) + 1e-3 * random.random(
        num_documents
    )
    return features @ features.T, linear_gain, max(1, num_documents // 3)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 90), st.integers(0, 2**31), st.floats(0, 2))
def test_greedy_over_neighbours_is_greedy(num_documents, seed, linear_gain_scale):
    """If every document is a neighbour: the same order and gains as without any bound."""
    similarity, linear_gain, depth = greedy_case(num_documents, seed, linear_gain_scale)
    excess = (similarity - similarity.min(1, keepdims=True)).astype(np.float32)
    chosen, gains = naive_greedy(excess - 1.0, linear_gain, 1.0, depth)
    found = sparse_greedy_gains(csc_array(excess), torch.tensor(linear_gain), 1.0, depth)
    assert found.argsort(descending=True)[:depth].tolist() == chosen
    assert found[chosen].tolist() == pytest.approx(gains, rel=1e-4, abs=1e-5)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 90), st.integers(0, 2**31), st.floats(0, 2))
def test_lazy_greedy_is_greedy(num_documents, seed, linear_gain_scale):
    """The same documents in the same order with the same gains as without any bound."""
    similarity, linear_gain, depth = greedy_case(num_documents, seed, linear_gain_scale)
    chosen, gains = naive_greedy(similarity, linear_gain, 1.0, depth)
    found = greedy_gains(torch.tensor(similarity), torch.tensor(linear_gain), 1.0, depth)
    assert found.argsort(descending=True)[:depth].tolist() == chosen
    assert found[chosen].tolist() == pytest.approx(gains)


@settings(max_examples=10, deadline=None)
@given(st.integers(20, 90), st.integers(0, 2**31))
def test_a_shard_in_one_block_selects_what_greedy_does(num_documents, seed):
    """From the vectors alone, without another term."""
    features = np.random.default_rng(seed).normal(size=(num_documents, 6))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    depth = num_documents // 4
    chosen, _ = naive_greedy(features @ features.T, np.zeros(num_documents), 1.0, depth)
    selection = Selection(metric="facility_location", quality_weight=0.0, swap_refinement=0)
    given = (features.astype(np.float32), np.zeros(num_documents), selection, depth)
    compute = Compute(device="cpu", matmul="float32")
    found = learn_mask(*given, seed=0, compute=compute)
    assert np.flatnonzero(found.selected).tolist() == sorted(chosen)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 400), st.integers(2, 60), st.integers(0, 99))
def test_blocks_are_a_partition(num_documents, largest, seed):
    """Every document in one block, none larger than allowed, none less than a third of that."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(num_documents, 5)).astype(np.float32)
    data = shard_data(features, np.zeros(num_documents), {}, Compute(device="cpu"))
    blocks = similar_blocks(data, largest)
    assert sorted(torch.cat(blocks).tolist()) == list(range(num_documents))
    sizes = [len(block) for block in blocks]
    assert max(sizes) <= largest
    assert len(blocks) == 1 or min(sizes) >= largest // 3


def test_blocks_hold_similar_documents(make_shard):
    """A document's mean cosine within its block is far above that with the shard."""
    features, quality = make_shard(2000, 16, 4, num_clusters=8)
    data = shard_data(features, quality, {}, Compute(device="cpu"))
    within = [
        float((data.rows(rows) @ data.rows(rows).T).mean()) for rows in similar_blocks(data, 300)
    ]
    whole = data.rows(slice(None))
    assert np.mean(within) > 2 * float((whole @ whole.T).mean())


def test_equal_documents_are_halved():
    """No direction to split along: the blocks are still a partition."""
    features = np.tile(np.eye(4, dtype=np.float32)[:1], (100, 1))
    data = shard_data(features, np.zeros(100), {}, Compute(device="cpu"))
    assert sorted(torch.cat(similar_blocks(data, 30)).tolist()) == list(range(100))


@pytest.mark.parametrize("share", [1.0, 0.2, 0.02])
def test_neighbours_are_the_nearest_candidates(make_shard, share):
    """Of all candidates, where every block is searched; once each, however few there are."""
    features, quality = make_shard(600, 16, 5)
    data = shard_data(features, quality, {}, Compute(device="cpu"))
    candidates = np.random.default_rng(0).random(600) < share
    candidates[0] = True
    found = coverage.nearest_candidates(
        data, similar_blocks(data, 100), torch.from_numpy(candidates)
    )
    rows = np.flatnonzero(candidates)
    similarity = (features @ features.T)[:, rows]
    nearest = np.sort(similarity, axis=1)[:, ::-1]
    floor = nearest[:, coverage.NEIGHBOURS - 1] if len(rows) >= coverage.NEIGHBOURS else -1.0
    expected = np.maximum(similarity - np.reshape(floor, (-1, 1)), 0)
    np.testing.assert_allclose(found.toarray()[:, rows], expected, atol=1e-5)
    assert not found.toarray()[:, ~candidates].any()
    assert len(set(zip(*found.nonzero(), strict=True))) == found.nnz


@pytest.mark.parametrize("num_selected", [200, 40])
def test_many_blocks_cost_little(make_shard, monkeypatch, num_selected):
    """Eight blocks keep nearly all that one gains over random; 40 have only 400 candidates."""
    shard = make_shard(2000, 256, 4)
    selection = Selection(metric="facility_location", quality_weight=0.0, swap_refinement=0)
    gains = []
    for largest in (2000, 250):
        monkeypatch.setattr(coverage, "_largest_block", lambda data, largest=largest: largest)
        found = learn_mask(*shard, selection, num_selected, seed=0, compute=Compute(device="cpu"))
        objective = found.metrics["objective"]
        gains.append(objective["selected"] - objective["random"])
    assert gains[1] > 0.98 * gains[0]


def test_a_block_that_needs_more_takes_more():
    """Half of the documents are copies of one another: the budget goes to the other half."""
    random = np.random.default_rng(0)
    features = random.normal(size=(200, 8))
    features[:100] = features[0] + 0.01 * random.normal(size=(100, 8))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    selection = Selection(metric="facility_location", quality_weight=0.0)
    found = learn_mask(features.astype(np.float32), np.zeros(200), selection, 40, seed=0)
    assert found.selected[:100].sum() <= 3


def test_terms_beside_coverage_are_heard(make_shard):
    """With a second metric the joint value is above what coverage alone reaches."""
    shard = make_shard(600, 8, 2)
    joint, alone = (
        learn_mask(
            *shard,
            Selection(metric="facility_location", quality_weight=0.0, more_terms=terms),
            60,
            seed=0,
            compute=Compute(device="cpu"),
        ).metrics["terms"]
        for terms in ([{"name": "pairwise", "weight": 2.0}], [{"name": "pairwise", "weight": 0.0}])
    )
    assert joint["pairwise"]["selected"] < alone["pairwise"]["selected"]
    spread = [t["facility_location"]["selected"] for t in (alone, joint)]
    assert spread[0] >= spread[1] > joint["facility_location"]["random"]


def test_greedy_on_twelve_documents_is_near_the_optimum(make_shard):
    """At least 1 − 1/e of the best subset's value above none, by brute force."""
    features, _ = make_shard(12, 4, 1, num_clusters=4)
    similarity = torch.tensor(features @ features.T)
    gains = greedy_gains(similarity, torch.zeros(12), 1.0, 4)
    reached = float(gains.topk(4).values.sum())
    best = max(
        float((similarity[:, list(rows)].amax(1) + 1).sum())
        for rows in itertools.combinations(range(12), 4)
    )
    assert (1 - np.exp(-1)) * best <= reached <= best + 1e-4
