"""Greedy over near neighbours against greedy as the textbook has it, and blocks as a partition."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from datamask.config.compute import Compute
from datamask.config.selection import Selection
from datamask.learning import neighbours
from datamask.learning.learner import learn_mask, shard_data
from datamask.learning.neighbours import Neighbours
from datamask.learning.partition import projected, similar_blocks
from tests.conftest import mostly_nightly

pytestmark = pytest.mark.usefixtures("roughly")


def naive_greedy(similarity, depth):
    """Evaluate the whole coverage for every candidate of every pick; documents in order."""

    def value(chosen):
        best = similarity[:, chosen].max(1) if chosen else np.full(len(similarity), -1.0)
        return (best + 1).sum()

    chosen = []
    for _ in range(depth):
        left = [row for row in range(len(similarity)) if row not in chosen]
        found = [value([*chosen, row]) - value(chosen) for row in left]
        best = int(np.argmax(found))
        # Sums in float32 cannot tell closer gains apart.
        assume(len(found) == 1 or np.diff(np.sort(found))[-1] > 1e-4)
        chosen.append(left[best])
    return chosen


@settings(max_examples=10, deadline=None)
@given(st.integers(20, 90), st.integers(0, 2**31))
def test_a_shard_in_one_block_selects_what_greedy_does(num_documents, seed):
    """From the vectors alone, without another term."""
    features = np.random.default_rng(seed).normal(size=(num_documents, 6))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    depth = num_documents // 4
    chosen = naive_greedy(features @ features.T, depth)
    selection = Selection(metric="facility_location", quality_weight=0.0, swap_refinement=0)
    given = (features.astype(np.float32), np.zeros(num_documents), selection, depth)
    compute = Compute(device="cpu", matmul="float32")
    found = learn_mask(*given, seed=0, compute=compute)
    assert np.flatnonzero(found.selected).tolist() == sorted(chosen)


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 400), st.integers(2, 60), st.integers(0, 99))
def test_blocks_are_a_partition(num_documents, size, seed):
    """Every document in one block, none of more than twice the size."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(num_documents, 5)).astype(np.float32)
    if seed % 10 == 0:
        features[:] = features[0]  # no direction to cut along
    data = shard_data(features, np.zeros(num_documents), {}, Compute(device="cpu"))
    blocks = similar_blocks(data, size)
    assert sorted(torch.cat(blocks).tolist()) == list(range(num_documents))
    assert all(1 <= len(rows) <= 2 * size for rows in blocks)
    assert all((rows.diff() > 0).all() for rows in blocks)
    assert len(blocks) == 1 or num_documents > size


def neighbours_of(features, monkeypatch, size, num_selected, most=600):
    """Lists of these documents, in blocks of about so many, of which so many are searched."""
    monkeypatch.setattr(neighbours, "WHOLE", size)
    monkeypatch.setattr(neighbours, "BLOCK", size)
    monkeypatch.setattr(neighbours, "NEAR", most)
    monkeypatch.setattr(neighbours, "PLACES", size)  # lists of the very nearest
    data = shard_data(features, np.zeros(len(features)), {}, Compute(device="cpu"))
    return Neighbours.of(data, num_selected)


@pytest.mark.parametrize(("num_selected", "length"), [(60, 32), (15, 120), (1, 128)])
def test_neighbours_are_the_nearest_documents(make_shard, monkeypatch, num_selected, length):
    """Where every block is searched; more of them if fewer are selected."""
    features, _ = make_shard(600, 16, 5)
    monkeypatch.setattr(neighbours, "EXACT", 1)
    found = neighbours_of(features, monkeypatch, 100, num_selected)
    similarity = features @ features.T
    floor = np.sort(similarity, axis=1)[:, -length]
    np.testing.assert_allclose(found.last_N, floor, atol=1e-5)
    expected = np.where(similarity >= floor[:, None], similarity, 0)
    np.testing.assert_allclose(found.cosines.toarray(), expected, atol=1e-5)


def test_neighbours_along_few_directions_are_nearly_the_nearest(make_shard, monkeypatch):
    """Most are found, their cosines are exact, and each document is its own neighbour."""
    features, _ = make_shard(2000, 256, 5)
    random = np.random.default_rng(0)
    # A few documents lie across the directions along which the others differ.
    odd = np.linalg.qr(random.normal(size=(256, 256)))[0]
    features[:1980] = features[:1980] @ odd[:, :60] @ odd[:, :60].T
    features[1980:] = random.normal(size=(20, 196)) @ odd[:, 60:].T + 0.1 * features[:20]
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    monkeypatch.setattr(neighbours, "DIRECTIONS", 40)
    found = neighbours_of(features, monkeypatch, 250, 200, 2000)
    lists, similarity = found.cosines.tocsr(), features @ features.T
    rows = np.repeat(np.arange(2000), np.diff(lists.indptr))
    np.testing.assert_allclose(lists.data, similarity[rows, lists.indices], atol=1e-5)
    lowest = np.minimum.reduceat(lists.data, lists.indptr[:-1])
    np.testing.assert_array_equal(found.last_N, lowest)
    length = lists.nnz // 2000
    assert all(len(set(lists[[row]].indices)) == length for row in range(2000))
    assert all(row in lists[[row]].indices for row in range(2000))
    nearest = np.sort(similarity, axis=1)[:, -length]
    assert (lists.data >= nearest[rows] - 1e-6).mean() > 0.85


def test_each_of_many_copies_is_its_own_neighbour(make_shard, monkeypatch):
    """Even where a list is too short for all copies, which are equally near."""
    features, _ = make_shard(1200, 64, 5)
    features[300:900] = features[299]
    monkeypatch.setattr(neighbours, "DIRECTIONS", 40)
    for size in (250, 1200):
        found = neighbours_of(features, monkeypatch, size, 200, 1200)
        assert (found.cosines.diagonal() > 0.999).all()


def test_principal_directions_hold_what_eigenvectors_do(make_shard):
    """Nearly as much of the vectors' squares as the exact ones, which are the best."""
    features, quality = make_shard(2000, 256, 5)
    data = shard_data(features, quality, {}, Compute(device="cpu"))
    kept = projected(data, 40)
    best = np.linalg.eigvalsh(features.T.astype(np.float64) @ features)[-40:].sum()
    held = float(np.square(kept.features.astype(np.float64)).sum())
    assert 0.95 * best < held < 1.001 * best
    assert projected(data, 256) is data


def test_lists_are_as_long_as_near_blocks_allow(make_shard, monkeypatch):
    """With blocks smaller than a list, all of the smallest is listed; of a small shard, all."""
    features, _ = make_shard(600, 16, 5)
    found = neighbours_of(features, monkeypatch, 10, 60, 1)
    smallest = min(found.blocks.rows, key=len).tolist()
    assert found.cosines.nnz == 600 * len(smallest)
    assert sorted(found.cosines.tocsr()[smallest].indices) == sorted(smallest * len(smallest))
    assert neighbours_of(features[:512], monkeypatch, 512, 200).cosines.nnz == 512**2


@pytest.mark.parametrize(("rank", "share"), [(1, 0.05), (3, 0.01)])
def test_documents_are_covered_by_near_blocks(make_shard, monkeypatch, rank, share):
    """By the selected document of a rank in the block and near ones, or by none."""
    features, _ = make_shard(600, 16, 5)
    lists = neighbours_of(features, monkeypatch, 100, 60, 250)
    blocks = lists.blocks
    mask = np.random.default_rng(0).random(600) < share
    expected = np.full(600, -1.0)
    for rows, near in zip(blocks.rows, blocks.near, strict=True):
        nearby = [row for block in near for row in blocks.rows[block].tolist()][:250]
        others = [row for row in nearby if mask[row]]
        if len(others) >= rank:
            cosines = np.sort(features[rows] @ features[others].T, axis=1)
            expected[rows] = cosines[:, -rank]
    hidden = np.random.default_rng(1).random(600) < 0.5
    found = lists.covered(torch.from_numpy(mask), torch.from_numpy(hidden), rank)
    np.testing.assert_allclose(found, np.where(hidden, expected, -1), atol=1e-5)
    assert (expected == -1).any() == (rank == 3)


@pytest.mark.parametrize("size", [100, 600])
@pytest.mark.parametrize("share", [0.0, 0.002, 0.1, 0.5, 1.0])
def test_gains_are_what_a_document_changes(make_shard, monkeypatch, size, share):
    """Of a random mask, against evaluating it with each document taken in or out."""
    features, _ = make_shard(600, 16, 5)
    monkeypatch.setattr(neighbours, "EXACT", 1)
    lists = neighbours_of(features, monkeypatch, size, 60)
    mask = np.random.default_rng(0).random(600) < share
    similarity = np.c_[features @ features.T, np.full(600, -1.0)]

    def value(mask):
        return similarity[:, np.append(mask, True)].max(1).mean()

    changed = [value(np.where(np.arange(600) == row, ~mask, mask)) for row in range(600)]
    expected = np.abs(np.array(changed) - value(mask))
    np.testing.assert_allclose(lists.gains(torch.from_numpy(mask)), expected, atol=1e-6)


def gain_over_random(shard, num_selected, quality_weight=0.0):
    """Of the learned mask, and of `lazy_greedy`, in the same units."""
    gains = []
    for method in ("mask", "lazy_greedy"):
        selection = Selection(
            metric="facility_location",
            quality_weight=quality_weight,
            swap_refinement=0,
            method=method,
        )
        found = learn_mask(*shard, selection, num_selected, seed=0, compute=Compute(device="cpu"))
        objective = found.metrics["objective"]
        gains.append(objective["selected"] - objective["random"])
    return gains


@pytest.mark.parametrize(
    ("largest", "num_selected", "quality_weight"),
    mostly_nightly(
        [(2000, 40, 0.8), (250, 200, 0.0)],
        itertools.product((2000, 250), (200, 40), (0.0, 0.8)),
    ),
)
def test_short_lists_cost_little(make_shard, monkeypatch, largest, num_selected, quality_weight):
    """In one block or in eight, next to quality or alone, nearly all of lazy greedy's gain."""
    for name in ("WHOLE", "BLOCK"):
        monkeypatch.setattr(neighbours, name, largest)
    monkeypatch.setattr(neighbours, "EXACT", 1)
    reached, exact = gain_over_random(make_shard(2000, 256, 4), num_selected, quality_weight)
    assert reached > (0.995 if largest == 2000 else 0.98) * exact


@pytest.mark.parametrize(("num_groups", "size"), [(10, 100), (2, 800)])
def test_groups_of_copies_are_covered(make_shard, monkeypatch, num_groups, size):
    """Groups of near-copies that are larger than a list count as one member of each covers."""
    monkeypatch.setattr(neighbours, "EXACT", 1)
    features, quality = make_shard(2000, 256, 4)
    random = np.random.default_rng(0)
    for group in range(num_groups):
        rows = slice(group * size, (group + 1) * size)
        features[rows] = features[group] + 0.001 * random.normal(size=(size, 256))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    reached, exact = gain_over_random((features.astype(np.float32), quality), 200)
    assert reached > 0.995 * exact


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


def test_progress_counts_the_documents_compared_and_the_steps(make_shard):
    """A large shard shows more than the time that it has taken."""
    told = []
    shard, selection = make_shard(2500, 8, 2), Selection(metric="facility_location")
    compute = Compute(device="cpu")
    learn_mask(
        *shard, selection, 250, seed=0, compute=compute, progress=lambda *of: told.append(of)
    )
    compared = [done for done, total, what in told if what == "documents compared"]
    assert compared == [1024, 2048, 2500] and {total for _, total, _ in told[:3]} == {2500}
    assert [done for done, _, _ in told[3:]] == list(range(1, len(told) - 2))
