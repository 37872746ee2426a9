"""The learner as a whole: optimal where that can be known, better than its comparators."""

import itertools

import numpy as np
import pytest
import torch

from datamask.config.compute import Compute
from datamask.config.selection import Selection, Term
from datamask.errors import InputError, SettingsError
from datamask.learning.learner import learn_mask
from datamask.objectives.protocol import Batch, MomentObjective, Moments
from datamask.objectives.weighted import WeightedObjective, WeightedTerm, load_objective
from tests.conftest import nightly

pytestmark = pytest.mark.usefixtures("roughly")

METRICS = ["pairwise", "disf", "facility_location"]
CPU = Compute(device="cpu")


class Toxicity(MomentObjective):
    """A user's term by moments: the mean of a score that is to be kept low."""

    name = "toxicity"
    maximise = False
    order = 0

    def of_moments(self, moments: Moments) -> torch.Tensor:
        """Mean score."""
        return moments.scores["toxicity"] / moments.count


class Worst:
    """A user's term by values only: the worst quality in the subset."""

    name = "worst"
    maximise = True

    def values(self, masks_GB: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Smallest quality of each mask."""
        return torch.where(masks_GB, batch.quality_B, torch.inf).amin(1)


def learn(shard, selection, num_selected, seed=0, **options):
    """Learn on the CPU."""
    return learn_mask(*shard, selection, num_selected, seed=seed, compute=CPU, **options)


@pytest.mark.parametrize(
    ("shards", "metric", "estimator"),
    [
        *((20, metric, "expected") for metric in METRICS),
        *nightly((20, METRICS[1], "policy_gradient")),
        *(
            pytest.param(60, metric, estimator, marks=pytest.mark.slow)
            for metric in METRICS
            for estimator in ("expected", "policy_gradient")
        ),
    ],
)
def test_small_shards_reach_the_brute_force_optimum(make_shard, metric, estimator, shards):
    """In at least 95 % of seeded shards of 8 to 12 documents no subset is better."""
    selection = Selection(metric=metric, estimator=estimator, steps=20, rollouts=16)
    reached = 0
    for seed in range(shards):
        num_documents, num_selected = 8 + seed % 5, 3 + seed % 3
        shard = make_shard(num_documents, 4, seed, num_clusters=3)
        found = learn(shard, selection, num_selected, seed)
        scales = found.metrics["scales"]
        joint = WeightedObjective(
            tuple(
                WeightedTerm(load_objective(name), 0.5, scales[name])
                for name in ("quality", metric)
            )
        )
        batch = Batch(torch.tensor(shard[0]), torch.tensor(shard[1], dtype=torch.float32))
        subsets = torch.tensor(list(itertools.combinations(range(num_documents), num_selected)))
        masks = torch.zeros(len(subsets), num_documents, dtype=torch.bool)
        best = float(joint.values(masks.scatter_(1, subsets, True), batch).max())
        value = float(joint.values(torch.tensor(found.selected)[None], batch)[0])
        reached += value >= best - 1e-4 * max(abs(best), 1.0)
    assert reached >= 0.95 * shards, f"{reached} of {shards}"


@pytest.mark.parametrize("metric", ["disf", *nightly("pairwise", "facility_location")])
def test_lambda_traces_a_monotone_frontier(make_shard, metric):
    """As lambda rises quality never falls and diversity never gains; 1 is top quality itself."""
    shard = make_shard(1500, 16, 5)
    quality, diversity, ranges = [], [], []
    for weight in (0.0, 0.25, 0.5, 0.75, 1.0):
        selection = Selection(metric=metric, quality_weight=weight, steps=60)
        found = learn(shard, selection, 150)
        terms = found.metrics["terms"]
        quality.append(terms["quality"]["selected"])
        sign = 1 if terms[metric]["maximise"] else -1
        ranges.append(abs(terms[metric]["best"] - terms[metric]["random"]))
        diversity.append(sign * terms[metric]["selected"])
    assert (np.diff(quality) > -0.02).all(), quality
    assert (np.diff(diversity) < 0.02 * ranges[2]).all(), diversity
    assert ranges == pytest.approx([ranges[2]] * 5, rel=1e-6)
    top = np.argsort(-shard[1])[:150]
    assert sorted(np.flatnonzero(found.selected)) == sorted(top)


@pytest.mark.parametrize("estimator", ["expected", "policy_gradient"])
def test_same_seed_gives_the_same_bytes(make_shard, estimator):
    """Seed decides all; the global generator neither helps nor is touched."""
    shard = make_shard(300, 8, 1)
    selection = Selection(metric="disf", estimator=estimator, steps=30)
    torch.manual_seed(1)
    first = learn(shard, selection, 30, seed=4)
    state = torch.get_rng_state()
    torch.manual_seed(2)
    second = learn(shard, selection, 30, seed=4)
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state)
    assert first.logits.tobytes() == second.logits.tobytes()
    assert first.metrics == second.metrics
    assert learn(shard, selection, 30, seed=5).logits.tobytes() != first.logits.tobytes()


@pytest.mark.parametrize("estimator", ["expected", "policy_gradient"])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    ("num_documents", "num_selected"), [(0, 0), (5, 0), (5, 5), (5, 1), (1, 1)]
)
def test_extreme_sizes_work(make_shard, estimator, metric, num_documents, num_selected):
    """Nothing, one, all: the mask has its size and every figure is finite."""
    shard = make_shard(num_documents, 4, 0)
    selection = Selection(estimator=estimator, metric=metric, steps=5)
    found = learn(shard, selection, num_selected)
    assert found.selected.sum() == num_selected and len(found.logits) == num_documents
    assert np.isfinite(found.logits).all()
    for term in found.metrics["terms"].values():
        assert np.isfinite([term["selected"], term["random"], term["top_quality"]]).all()
    lengths = {len(column) for column in found.curve.values()}
    assert len(lengths) == 1 and lengths != {0}


@pytest.mark.parametrize("estimator", ["expected", "policy_gradient"])
@pytest.mark.parametrize("metric", METRICS)
def test_constant_quality_and_duplicates_work(estimator, metric):
    """A term without deviation has scale 1, and equal vectors do no harm."""
    features = np.tile(np.eye(4, dtype=np.float16), (10, 1))
    selection = Selection(estimator=estimator, metric=metric, steps=10)
    found = learn((features, np.ones(40)), selection, 8)
    assert found.selected.sum() == 8 and np.isfinite(found.logits).all()
    assert found.metrics["scales"]["quality"] == 1.0


def test_certified_gap_bounds_the_best_subset(make_shard):
    """No subset exceeds the mask by more than the gap says, by brute force."""
    shard = make_shard(12, 6, 7)
    selection = Selection(metric="pairwise", steps=60, swap_refinement=0)
    found = learn(shard, selection, 5)
    metrics = found.metrics
    joint = WeightedObjective(
        tuple(
            WeightedTerm(load_objective(name), 0.5, metrics["scales"][name])
            for name in ("quality", "pairwise")
        )
    )
    subsets = torch.tensor(list(itertools.combinations(range(12), 5)))
    masks = torch.zeros(len(subsets), 12, dtype=torch.bool).scatter_(1, subsets, True)
    batch = Batch(torch.tensor(shard[0]), torch.tensor(shard[1], dtype=torch.float32))
    best = float(joint.values(masks, batch).max())
    value = metrics["objective"]["selected"]
    bound = value + metrics["optimality_gap"] * (value - metrics["objective"]["random"])
    assert best <= bound + 1e-3 * abs(bound)


def test_a_users_third_term_is_obeyed(make_shard):
    """A moment term in the settings lowers its score; a term of values only uses the gradient."""
    shard = make_shard(600, 8, 9)
    toxicity = np.random.default_rng(0).random(600)
    term = Term(name=f"{__name__}:Toxicity", weight=1.0)
    found = learn(
        shard,
        Selection(metric="pairwise", steps=30, more_terms=(term,)),
        60,
        scores={"toxicity": toxicity},
    )
    assert found.metrics["estimator"] == "expected"
    assert toxicity[found.selected].mean() < 0.4
    worst = Selection(metric=f"{__name__}:Worst", steps=100, rollouts=32)
    assert learn(shard, worst, 60).metrics["estimator"] == "policy_gradient"
    with pytest.raises(SettingsError, match="expected"):
        learn(shard, worst.model_copy(update={"estimator": "expected"}), 60)


def test_memory_mapped_embeddings_in_small_chunks_give_the_same_mask(make_shard, tmp_path):
    """Where the embeddings lie and how much is cast at once changes nothing but rounding."""
    features, quality = make_shard(3000, 16, 11)
    stored = np.memmap(tmp_path / "features", np.float16, "w+", shape=features.shape)
    stored[:] = features
    selection = Selection(metric="disf", steps=40)
    whole = learn_mask(np.array(stored), quality, selection, 300, seed=0, compute=CPU)
    small = Compute(device="cpu", working_set_bytes=2**20)
    streamed = learn_mask(stored, quality, selection, 300, seed=0, compute=small)
    values = [f.metrics["objective"]["selected"] for f in (whole, streamed)]
    gain = values[0] - whole.metrics["objective"]["random"]
    assert abs(values[0] - values[1]) < 0.02 * gain


@pytest.mark.gpu
@pytest.mark.parametrize("metric", METRICS)
def test_cuda_agrees_with_the_cpu(make_shard, metric):
    """One shard reaches the same objective on the accelerator."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    shard = make_shard(2000, 32, 0)
    selection = Selection(metric=metric, steps=40)
    here = learn(shard, selection, 200).metrics["objective"]
    there = learn_mask(*shard, selection, 200, seed=0, compute=Compute(device="cuda"))
    gain = here["selected"] - here["random"]
    assert abs(there.metrics["objective"]["selected"] - here["selected"]) < 0.02 * gain


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize(("row", "factor"), [(0, 28.0), (20_000, 1.5), (20_480, 0.0)])
def test_rows_that_are_not_of_unit_length_are_refused(make_shard, dtype, row, factor):
    """The error names the first such row and its norm; rounding to float16 is accepted."""
    features, quality = make_shard(20_500, 4, 0)
    features = features.astype(dtype)
    learn((features, quality), Selection(method="random", metric="disf"), 3)
    features[row:] *= dtype(factor)
    with pytest.raises(InputError, match=rf"^row {row}, column features: norm {factor:g}"):
        learn((features, quality), Selection(method="random", metric="disf"), 3)
