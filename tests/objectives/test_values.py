"""Every term against a plain numpy re-derivation from its definition."""

import numpy as np
import pytest
import torch

from datamask.errors import SettingsError
from datamask.objectives.disf import DiSF
from datamask.objectives.facility_location import FacilityLocation
from datamask.objectives.pairwise import PairwiseSimilarity
from datamask.objectives.protocol import Batch, MomentObjective, Moments
from datamask.objectives.quality import Quality
from datamask.objectives.weighted import WeightedObjective, WeightedTerm, load_objective


def make_batch(num_documents, dimension, seed, **options):
    """Random unit vectors with quality and one named score."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(num_documents, dimension)) + 0.3
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    return Batch(
        torch.tensor(features, dtype=torch.float32),
        torch.tensor(random.normal(size=num_documents), dtype=torch.float32),
        {"toxicity": torch.tensor(random.random(num_documents), dtype=torch.float32)},
        **options,
    )


def make_masks(num_masks, num_documents, num_selected, seed):
    """Random masks of one size."""
    random = np.random.default_rng(seed)
    masks = np.zeros((num_masks, num_documents), dtype=bool)
    for mask in masks:
        mask[random.choice(num_documents, num_selected, replace=False)] = True
    return torch.tensor(masks)


def by_definition(name, subset, everything, quality):
    """A term's value in float64 loops and numpy, straight from its formula."""
    size = len(subset)
    if name == "quality":
        return quality.mean()
    if name == "pairwise":
        pairs = [subset[a] @ subset[b] for a in range(size) for b in range(size) if a != b]
        return np.mean(pairs)
    if name == "facility_location":
        return np.mean([max(x @ y for y in subset) for x in everything])
    deviation = subset.std(0, ddof=1) + 1e-8
    standard = (subset - subset.mean(0)) / deviation
    correlation = standard.T @ standard / (size - 1)
    np.fill_diagonal(correlation, 0)
    return (correlation**2).sum() / 10000


@pytest.mark.parametrize("name", ["quality", "pairwise", "facility_location", "disf"])
@pytest.mark.parametrize(("dimension", "num_selected"), [(6, 11), (20, 5)])
@pytest.mark.parametrize("working_set_bytes", [2**28, 1])
def test_values_follow_the_definition(name, dimension, num_selected, working_set_bytes):
    """All masks at once, or in the smallest groups, give what the formula gives one by one."""
    batch = make_batch(30, dimension, 0, working_set_bytes=working_set_bytes)
    masks = make_masks(7, 30, num_selected, 1)
    features, quality = batch.features_BD.double().numpy(), batch.quality_B.double().numpy()
    expected = [by_definition(name, features[m], features, quality[m]) for m in masks.numpy()]
    values = load_objective(name).values(masks, batch)
    np.testing.assert_allclose(values.numpy(), expected, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("objective", [Quality(), PairwiseSimilarity(), DiSF()])
def test_moments_give_the_same_value_as_masks(objective):
    """`of_moments` and `values` are two roads to one number."""
    batch = make_batch(30, 6, 2)
    masks = make_masks(5, 30, 12, 3)
    by_moments = MomentObjective.values(objective, masks, batch)
    torch.testing.assert_close(objective.values(masks, batch), by_moments, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["quality", "pairwise", "facility_location", "disf"])
def test_one_document_has_a_finite_value(name):
    """A subset of one has no pairs and no variance, and still a value."""
    batch = make_batch(5, 4, 4)
    masks = torch.eye(5, dtype=torch.bool)
    assert torch.isfinite(load_objective(name).values(masks, batch)).all()


def test_facility_location_samples_probes_of_large_batches():
    """Probes in the mask and outside are averaged apart, each for all documents like it."""
    batch = make_batch(50, 5, 5)
    masks = make_masks(3, 50, 4, 6)
    objective = FacilityLocation(probes=8)
    rows = objective.probe_rows(50)
    features = batch.features_BD
    expected = []
    for mask in masks:
        covered, inside = (features[rows] @ features[mask].T).amax(1), mask[rows]
        own = covered[inside].mean() if inside.any() else torch.tensor(1.0)
        expected.append(4 / 50 * own + 46 / 50 * covered[~inside].mean())
    assert len(set(rows.tolist())) == 8
    torch.testing.assert_close(objective.values(masks, batch), torch.stack(expected))


class Toxicity(MomentObjective):
    """A user's term: the mean of a score that is to be kept low."""

    name = "toxicity"
    maximise = False
    order = 0

    def of_moments(self, moments: Moments) -> torch.Tensor:
        """Mean score."""
        return moments.scores["toxicity"] / moments.count


def test_joint_objective_weighs_scales_and_directs_its_terms():
    """A user's third term counts against the objective in units of its scale."""
    batch = make_batch(20, 5, 7)
    masks = make_masks(4, 20, 6, 8)
    joint = WeightedObjective(
        (WeightedTerm(Quality(), 0.5, 2.0), WeightedTerm(Toxicity(), 3.0, 0.1))
    )
    quality = torch.stack([batch.quality_B[m].mean() for m in masks])
    toxicity = torch.stack([batch.scores["toxicity"][m].mean() for m in masks])
    torch.testing.assert_close(joint.values(masks, batch), quality * 0.25 - toxicity * 30)


@pytest.mark.parametrize(
    "name", ["dsif", "no.such.module:Class", "datamask.objectives.disf:Missing", "builtins:object"]
)
def test_unknown_objectives_are_refused_in_one_line(name):
    """A name without an objective is a settings error that quotes the name."""
    with pytest.raises(SettingsError, match=name.split(":")[0]) as caught:
        load_objective(name)
    assert "\n" not in str(caught.value)
