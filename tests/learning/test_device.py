"""Whatever computes on a device keeps to it, shown on a pretended one: masks are the CPU's."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import backend_registration

from datamask.config.compute import Compute
from datamask.config.selection import Selection
from datamask.learning import exchange, scales
from datamask.learning.data import highest_order, moments_of
from datamask.learning.expected import StepSize
from datamask.learning.learner import LearnedMask, judge, learn_mask, scale, shard_data
from datamask.learning.scales import references, scaled
from datamask.objectives.weighted import build_terms

if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
    pytest.skip("a device in Python needs torch 2.13", allow_module_level=True)

from tests.conftest import mostly_nightly, nightly
from tests.learning import pretend_device as pretend

COMPUTE = Compute(device="cpu", working_set_bytes=2**20)
ON_DEVICE = COMPUTE.model_copy(update={"device": str(pretend.DEVICE)})
MORE = [{"name": "tests.learning.test_device:Farthest", "weight": 0.3}]


@pytest.fixture(autouse=True)
def _roughly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scales from dozens of subsets take the same ways as those from thousands."""
    monkeypatch.setattr(scales, "MOST_SUBSETS", 4)
    few = scales.ALONE_BY_VALUES.model_copy(update={"steps": 5})
    monkeypatch.setattr(scales, "ALONE_BY_VALUES", few)


class Farthest:
    """An objective that does not read moments: the mean distance to the farthest document."""

    name = "farthest"
    maximise = True

    def values(self, masks_GB: torch.Tensor, batch: Any) -> torch.Tensor:
        """Shape G."""
        distances = torch.cdist(batch.features_BD, batch.features_BD)
        chosen = [distances[mask][:, mask].amax(1).mean() for mask in masks_GB]
        return torch.stack(chosen)


def learn(selection: Selection, compute: Compute, shard: Any, count: int) -> LearnedMask:
    """A mask, with everything that learning does besides."""
    features, quality = shard
    return learn_mask(features, quality, selection, count, seed=3, compute=compute)


def assert_same(selection: Selection, shard: Any, count: int, **compute: object) -> None:
    """On the pretended device: the same logits, mask and figures as on the CPU."""
    here = learn(selection, COMPUTE.model_copy(update=compute), shard, count)
    with pretend.Accelerator():
        there = learn(selection, ON_DEVICE.model_copy(update=compute), shard, count)
    if selection.metric == "facility_location":  # few cosines are computed in another order
        np.testing.assert_allclose(there.logits, here.logits, rtol=1e-4, atol=1e-5)
    else:
        assert there.logits.tobytes() == here.logits.tobytes()
    np.testing.assert_array_equal(there.selected, here.selected)
    assert there.metrics == here.metrics
    assert {**there.curve, "seconds": 0} == {**here.curve, "seconds": 0}


@pytest.mark.parametrize(
    ("metric", "estimator", "size"),
    mostly_nightly(
        [
            ("disf", "expected", 60),
            ("pairwise", "policy_gradient", 60),
            ("facility_location", "expected", 300),
        ],
        product(
            ("disf", "pairwise", "facility_location"), ("expected", "policy_gradient"), (60, 300)
        ),
    ),
)
def test_metrics_and_estimators(make_shard, metric, estimator, size):
    """With every swap tried, and with blocks of swaps in a shard larger than its working set."""
    count = {60: 7, 300: 40}[size]
    shard = make_shard(size, 16, 1)
    changes = {"metric": metric, "estimator": estimator, "steps": 4, "rollouts": 4}
    small = {} if size == 60 else {"working_set_bytes": 2**13}
    assert_same(Selection(**changes), shard, count, **small)


@pytest.mark.parametrize(
    ("metric", "matmul"), [("disf", "tf32"), ("facility_location", "bfloat16")]
)
def test_products_in_lower_precision(make_shard, metric, matmul):
    """They stay on the device too."""
    assert_same(Selection(metric=metric, steps=4), make_shard(150, 16, 2), 20, matmul=matmul)


@pytest.mark.parametrize("working_set", [2**20, 2**13])
def test_an_objective_of_its_own_values(make_shard, working_set):
    """Policy gradient, and the sample by which a large shard is judged."""
    selection = Selection(metric="disf", more_terms=MORE, steps=3, rollouts=4)
    assert_same(selection, make_shard(200, 8, 3), 30, working_set_bytes=working_set)


@pytest.mark.parametrize(
    ("method", "metric"),
    [
        ("greedy", "pairwise"),
        ("lazy_greedy", "facility_location"),
        *nightly(
            ("random", "disf"),
            ("top_quality", "disf"),
            ("greedy", "disf"),
            ("semdedup", "disf"),
        ),
    ],
)
def test_comparators(make_shard, method, metric):
    """They choose on the host and are judged on the device."""
    assert_same(Selection(method=method, metric=metric), make_shard(80, 8, 4), 12)


def test_a_mask_from_elsewhere_is_judged(make_shard):
    """With further scores, as after the cut of all shards."""
    features, quality = make_shard(200, 8, 5)
    chosen = np.zeros(200, bool)
    chosen[::9] = True
    given = {"seed": 1, "ids": np.arange(200).astype(str), "scores": {"other": quality**2}}
    selection = Selection(metric="disf")

    def metrics(compute: Compute) -> Any:
        number = int(chosen.sum())
        return judge(scale(features, quality, selection, number, compute=compute, **given), chosen)

    with pretend.Accelerator():
        there = metrics(ON_DEVICE)
    assert there == metrics(COMPUTE)


@pytest.mark.parametrize("metric", [pytest.param("disf", marks=pytest.mark.slow), "pairwise"])
def test_a_round_between_shards(make_shard, metric):
    """Scales, dual price, what a sample has learned, and proposals in two rounds."""

    def rounds(compute: Compute) -> list[Any]:
        data = shard_data(*make_shard(700, 12, 6), {}, compute)
        terms = build_terms(Selection(metric=metric))
        ones = torch.ones(700, device=data.device)
        totals = moments_of(data, ones, highest_order(terms))
        terms = scaled(terms, references(terms, totals, data, 70, 1))
        moments = totals.scaled(70)
        dual_price = exchange.dual_price_of(terms, moments, data, 0.1)
        sample = shard_data(*make_shard(300, 12, 7), {}, COMPUTE)
        generator = torch.Generator().manual_seed(0)
        judge = exchange.learn_sample(terms, totals, data, 70, generator)
        logits, moments = judge.judge(data, highest_order(terms))
        step_size, others = StepSize(), (sample, torch.full((300,), -2.0))
        found: list[Any] = [dual_price, judge.threshold, *(term.scale for term in terms)]
        for seed in range(2):
            corpus = exchange.Corpus(terms, totals, moments, judge)
            generator = torch.Generator().manual_seed(seed)
            proposal = exchange.propose(data, corpus, logits, 700, step_size, others, generator)
            proposed = moments.mapped(torch.add, proposal.change)
            share, moments = exchange.agree(terms, moments, proposed, 70)
            logits = exchange.taken(logits, proposal.logits_B, share)
            step_size = proposal.step_size
            found += [share, logits.cpu().numpy().tobytes()]
        return found

    here = rounds(COMPUTE)
    with pretend.Accelerator():
        there = rounds(ON_DEVICE)
    assert there == here


def test_the_pretended_device_refuses_what_a_gpu_refuses():
    """Each of these fails on CUDA, or works there."""
    with pretend.Accelerator():
        host = torch.arange(6.0)
        there = host.to(pretend.DEVICE)
        generator = torch.Generator().manual_seed(0)
        refused = [
            lambda: there + host,
            lambda: there @ host,
            lambda: torch.where(there > 2, there, host),
            lambda: torch.cat([there, host]),
            lambda: host[there.long()],
            lambda: there.scatter_(0, torch.tensor([1]), 9.0),
            lambda: there.index_put_((torch.tensor([1, 2]),), torch.tensor([1.0, 2.0])),
            lambda: there.exponential_(generator=generator),
            lambda: torch.randperm(4, generator=generator, device=pretend.DEVICE),
        ]
        for number, attempt in enumerate(refused):
            with pytest.raises(pretend.MixedDevicesError):
                attempt()
                pytest.fail(f"number {number} was not refused")
        with pytest.raises((TypeError, RuntimeError)):
            there.numpy()
        np.testing.assert_array_equal((there * torch.tensor(2.0)).cpu().numpy(), 2 * host.numpy())
        there[torch.tensor([0, 1])] = 5.0
        there[2:4] += 1
        assert there.cpu().tolist() == [5.0, 5.0, 3.0, 4.0, 4.0, 5.0]
        assert there[torch.tensor([3])].device == there.sum().device == pretend.DEVICE
        assert float(there.sum()) == 26.0
