"""The ascent: it climbs, keeps its size and its state, in any precision."""

from typing import ClassVar

import numpy as np
import pytest
import torch

from datamask.config.compute import Compute
from datamask.config.selection import Selection
from datamask.learning import expected
from datamask.learning.data import moments_of
from datamask.learning.expected import Ascent, StepSize
from datamask.learning.learner import learn_mask, shard_data
from datamask.objectives.protocol import MomentObjective
from datamask.objectives.weighted import WeightedObjective, build_terms

pytestmark = pytest.mark.usefixtures("roughly")

METRICS = ["pairwise", "disf"]


def ascent(make_shard, metric, **options):
    """An ascent on 3,000 clustered documents that keeps 300."""
    features, quality = make_shard(3000, 16, 6)
    data = shard_data(features, quality, {}, Compute(device="cpu", **options))
    objective = WeightedObjective(build_terms(Selection(metric=metric, quality_weight=0.0)))
    return data, Ascent(data, objective, 300, torch.full((3000,), -2.1972246))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("move", [3.0, 300.0])
def test_every_step_climbs_and_keeps_the_size(make_shard, metric, move):
    """However long the moves: no value falls, Σ p stays S, moments and logits are those of p."""
    data, climbing = ascent(make_shard, metric)
    climbing.step_size = StepSize(move, move)
    generator = torch.Generator().manual_seed(0)
    values = [climbing.value]
    for _ in range(6):
        for rows in torch.split(torch.randperm(3000, generator=generator), 700):
            climbing.climb(rows.sort().values)
            values.append(climbing.value)
    steps = np.diff(values)
    assert (steps > -1e-3 * (values[-1] - values[0])).all()
    assert values[-1] > values[0]
    assert float(climbing.inclusion_N.sum()) == pytest.approx(300, rel=1e-3)
    fresh = moments_of(data, climbing.inclusion_N, climbing.order)
    assert float((climbing.moments.first_D - fresh.first_D).norm() / fresh.first_D.norm()) < 0.02
    probability = torch.sigmoid(climbing.logits_N)
    torch.testing.assert_close(climbing.inclusion_N, probability, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("metric", METRICS)
def test_bfloat16_products_change_little(make_shard, metric):
    """Products of less precision steer learning; what is reported is exact, and nearly as good."""
    shard = make_shard(3000, 16, 6)
    gains = []
    for matmul in ("float32", "bfloat16"):
        compute = Compute(device="cpu", matmul=matmul)
        found = learn_mask(*shard, Selection(metric=metric), 300, seed=0, compute=compute)
        objective = found.metrics["objective"]
        gains.append(objective["selected"] - objective["random"])
    assert gains[1] == pytest.approx(gains[0], rel=0.02)


@pytest.mark.parametrize(("native", "expected_matmul"), [(True, "bfloat16"), (False, "float32")])
def test_auto_is_the_fastest_precision_of_the_cpu(make_shard, monkeypatch, native, expected_matmul):
    """bfloat16 only where the CPU has AMX; scales and the value of random are exact."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: native)
    compute = Compute(device="cpu", matmul="auto")
    shard = make_shard(300, 16, 6)
    assert shard_data(*shard, {}, compute).matmul == expected_matmul
    found = [
        learn_mask(*shard, Selection(metric="disf"), 30, seed=0, compute=one).metrics
        for one in (compute, Compute(device="cpu"))
    ]
    assert found[0]["scales"] == found[1]["scales"]
    assert found[0]["objective"]["random"] == found[1]["objective"]["random"]


class Evenness(MomentObjective):
    """As much of the first dimension as of the second: tiny in random subsets, so weighted much."""

    name = "evenness"
    maximise = False
    order: ClassVar[int] = 1

    def of_moments(self, moments):
        """((Σ x₁ − Σ x₂) / S)²."""
        return ((moments.first_D[0] - moments.first_D[1]) / moments.count).square()


STIFF = ({"name": f"{__name__}:Evenness", "weight": 0.3},)


@pytest.fixture
def entered(monkeypatch):
    """Sizes of the batches in which documents replace the sample that stood for them."""
    sizes, enter = [], Ascent.enter

    def counted(self, rows, estimate):
        sizes.append(len(rows))
        enter(self, rows, estimate)

    monkeypatch.setattr(Ascent, "enter", counted)
    return sizes


def test_a_sampled_start_ends_as_high(make_shard, monkeypatch, entered):
    """With a sample of 1,000 of 8,000 documents, the gain is the same."""
    shard = make_shard(8000, 16, 6)
    selection = Selection(metric="disf", quality_weight=0.8, swap_refinement=0)

    def gain():
        objective = learn_mask(*shard, selection, 800, seed=0).metrics["objective"]
        return objective["selected"] - objective["random"]

    without = gain()
    assert not entered
    monkeypatch.setattr(expected, "SAMPLE", 1000)
    assert gain() > 0.99 * without
    assert sum(entered) == 8000


def test_a_stiff_objective_is_learned_until_its_expectation_has_settled(make_shard):
    """Its masks change by chance from pass to pass: this gained 0.52 when masks alone decided."""
    selection = Selection(metric="disf", quality_weight=0.1, more_terms=STIFF)
    objective = learn_mask(*make_shard(3000, 16, 6), selection, 300, seed=2).metrics["objective"]
    assert objective["selected"] - objective["random"] > 0.8


def test_a_stiff_objective_does_not_start_from_a_sample(make_shard, monkeypatch, entered):
    """Line searches make its moves short, so one long move would settle documents wrongly."""
    selection = Selection(
        metric="disf", quality_weight=0.1, swap_refinement=0, steps=1, more_terms=STIFF
    )
    sampled, climb_sample = [], expected.climb_sample

    def climbed(sample, generator):
        climb_sample(sample, generator)
        sampled.append(sample.step_size.move)

    monkeypatch.setattr(expected, "climb_sample", climbed)
    monkeypatch.setattr(expected, "SAMPLE", 1000)
    learn_mask(*make_shard(8000, 16, 6), selection, 800, seed=0)
    assert sampled and max(sampled) < expected.LEAST_SAMPLE_MOVE
    assert not entered


def test_the_objective_does_not_fall_in_a_hundred_passes(make_shard):
    """The logits stay numbers, so the last mask is as good as the best one on the way."""
    chosen = Selection(metric="disf", tolerance=0, steps=300, swap_refinement=0)
    curve = learn_mask(*make_shard(5000, 16, 6), chosen, 625, seed=0).curve["objective"]
    assert len(curve) >= 100
    assert curve[-2] == pytest.approx(max(curve), abs=0.01 * (max(curve) - min(curve)))


def test_a_shard_smaller_than_its_embeddings_are_wide_stops_too(make_shard):
    """Its masks are worse than its moments promise; that must not keep it going for ever."""
    features, quality = make_shard(120, 96, 3)
    found = learn_mask(features, quality, Selection(metric="disf"), 12, seed=0)
    assert found.metrics["stopped_by"] == "tolerance"


def test_without_quality_undecided_documents_end_at_the_least_cosine():
    """A mean cosine of S unit vectors is at least −1 / (S − 1); the learner is near it."""
    rows = np.random.default_rng(0).normal(size=(20_000, 8)) + np.eye(8)[0]
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)
    selection = Selection(metric="pairwise", quality_weight=0.0)
    found = learn_mask(
        rows, np.zeros(len(rows)), selection, 2000, seed=0, compute=Compute(device="cpu")
    )
    chosen = rows[found.selected].astype(np.float64)
    cosine = (np.square(chosen.sum(0)).sum() - np.square(chosen).sum()) / (2000 * 1999)
    everything = np.square(rows.astype(np.float64).mean(0)).sum()
    assert cosine + 1 / 1999 < 0.001 * everything
