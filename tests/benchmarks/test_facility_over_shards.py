"""`benchmarks.facility_over_shards`: its parts against the library, brute force and autograd."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

from benchmarks import facility_over_shards
from benchmarks.facility_over_shards import (
    Problem,
    bounding,
    greedy,
    problem_of,
    soft_coverage,
    ways,
)
from benchmarks.global_selection import planted


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
    copied = greedy(problem, rows, 10, torch.ones(50))
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


def test_soft_coverage_rises() -> None:
    """Its rounds keep the budget and raise the soft maximum that they learn."""
    problem = make(50, 4, 0.0)
    inclusion = soft_coverage(problem, 200, (20.0,)).sigmoid()
    assert float(inclusion.sum()) == pytest.approx(20, rel=1e-3)
    kernel = (20.0 * (problem.features_ND @ problem.features_ND.T - 1)).exp()
    random = torch.rand(99, 200, generator=torch.Generator().manual_seed(0)) * 0.2
    assert float((inclusion @ kernel).log().mean()) > float((random @ kernel).log().mean(1).max())


def test_every_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each selects S documents; none is above greedy over everything, blocks are close to it."""
    monkeypatch.setattr(facility_over_shards, "SOFT", ((100, (20.0,)),))
    problem = make(50, 4, 0.1)
    masks = {name: mask for name, mask, _, _ in ways(problem)}
    assert {int(mask.sum()) for mask in masks.values()} == {problem.num_selected}
    values = {name: problem.value(mask) for name, mask in masks.items()}
    best = values.pop("lazy greedy over everything")
    assert best > max(values.values()) - 0.01
    assert values["(a) blocks, one price"] - values["shard"] > 0.8 * (best - values["shard"])
