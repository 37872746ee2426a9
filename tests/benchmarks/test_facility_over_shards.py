"""`benchmarks.facility_over_shards`: its parts against the library, brute force and autograd."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import pytest
import torch

from benchmarks.facility_over_shards import (
    Problem,
    SoftCoverage,
    bounding,
    greedy,
    nearest_centroid,
    problem_of,
    soft_coverage,
    stages,
)
from benchmarks.global_selection import planted
from datamask.learning.coverage import greedy_gains
from datamask.objectives.protocol import Moments


def make(documents: int, shards: int, weight: float, step: int = 1) -> Problem:
    """Every *step*-th document of a small corpus."""
    corpus = planted(documents, 8, shards)
    rows = slice(step - 1, None, step)
    return problem_of(corpus.features[rows], corpus.quality[rows], shards, weight)


def test_a_count_is_a_repeated_document() -> None:
    """Greedy over 50 documents that count up to four times, and over as many copies of each."""
    problem = make(50, 1, 0.1)
    counts = torch.randint(1, 5, (50,), generator=torch.Generator().manual_seed(0))
    gains = greedy(problem, torch.arange(50), 10, counts).topk(10).values
    rows = torch.arange(50).repeat_interleave(counts)
    features = problem.features_ND[rows]
    copied = greedy_gains(features @ features.T, problem.bonus_N[rows], problem.weight, 10)
    assert torch.allclose(gains, copied.topk(10).values, rtol=1e-4)


@pytest.mark.parametrize("weight", [0.9, 0.95, 0.99])
def test_bounds_agree_with_the_best_subset(weight: float) -> None:
    """What exact bounds include is in the best subset of brute force, what they exclude is not."""
    problem = make(30, 2, weight, step=3)
    assert problem.num_selected == 2
    masks = torch.zeros(190, 20, dtype=torch.bool)
    for mask, rows in zip(masks, combinations(range(20), 2), strict=True):
        mask[list(rows)] = True
    best = masks[max(range(190), key=lambda at: problem.value(masks[at]))]
    included, excluded, _ = bounding(problem, 1.0, 0)
    assert bool(excluded.any())
    assert not bool((included & ~best).any() or (excluded & best).any())


def test_soft_coverage() -> None:
    """Its curvature is autograd's, its value bounds coverage, and rounds raise it."""
    problem = make(50, 4, 0.0)
    kernel = (40.0 * (problem.features_ND @ problem.features_ND.T - 1)).exp()
    mask = torch.arange(200) % 10 == 0
    zero = torch.zeros((), dtype=torch.float64)
    first = kernel[mask].double().sum(0)
    moments = Moments(zero + 20, zero, {}, first, zero.new_zeros(0, 0))
    objective = SoftCoverage(40.0)
    above = float(objective.of_moments(moments)) + 1 - problem.value(mask)
    assert 0 < above < math.log(20) / 40
    amount = zero.clone().requires_grad_()
    changed = replace(moments, first_D=first + amount * kernel[7])
    slope = torch.autograd.grad(objective.of_moments(changed), amount, create_graph=True)[0]
    curvature = float(torch.autograd.grad(slope, amount)[0])
    assert float(objective.self_curvature(moments, kernel[7:8])) == pytest.approx(curvature)
    logits = soft_coverage(problem, 200, (20.0,))
    kernel = (20.0 * (problem.features_ND @ problem.features_ND.T - 1)).exp()
    values = [(p @ kernel).log().mean() for p in (logits.sigmoid(), torch.full((200,), 0.1))]
    assert float(logits.sigmoid().sum()) == pytest.approx(20, rel=0.01)
    assert float(values[0]) > float(values[1])


def test_blocks_of_similar_documents_are_above_shards() -> None:
    """All stages keep S documents; similar blocks are above shards and below one place."""
    problem = make(100, 4, 0.0)
    apart, similar = lambda rows: rows // 100, nearest_centroid(problem, 4)
    steps = ([(1, apart)], [(2, apart), (1, similar)], [(1, similar)], [(1, torch.zeros_like)])
    masks = [stages(problem, *each)[0] for each in steps]
    assert [int(mask.sum()) for mask in masks] == [problem.num_selected] * 4
    values = [problem.value(mask) for mask in masks]
    assert values == sorted(values)
