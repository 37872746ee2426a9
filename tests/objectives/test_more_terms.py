"""Terms of the benchmarks, balance of groups, coverage of a target, against numpy and gains."""

import numpy as np
import pytest
import torch

from benchmarks.spectrum import LogDeterminant, Vendi
from datamask.config.compute import Compute
from datamask.config.loading import parse_settings
from datamask.config.selection import METRICS, Selection
from datamask.errors import SettingsError
from datamask.learning.data import moments_of
from datamask.learning.learner import learn_mask, shard_data
from datamask.learning.moment_gradient import moment_gradient
from datamask.objectives.formula import SIGNS, formula
from datamask.objectives.groups import GroupBalance, LengthBalance
from datamask.objectives.protocol import Batch
from datamask.objectives.target import TargetCoverage
from datamask.objectives.weighted import BUILT_IN, WeightedTerm, build_terms, load_objective

pytestmark = pytest.mark.usefixtures("roughly")


def shard(num_documents, dimension, seed):
    """Unit vectors of a few directions, quality, and two indicator columns of language."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(3, dimension))
    features = centres[random.integers(0, 3, num_documents)]
    features = features + 0.7 * random.normal(size=(num_documents, dimension))
    features = (features / np.linalg.norm(features, axis=1, keepdims=True)).astype(np.float32)
    language = random.choice(["en", "de", "fr"], num_documents, p=[0.6, 0.3, 0.1])
    scores = {f"language={name}": (language == name).astype(np.float32) for name in ("en", "de")}
    return features, random.normal(size=num_documents), scores, language


def by_definition(name, rows, language, target):
    """A term's value in numpy from its formula; rows are the selected documents, float64."""
    if name == "vendi":
        # Of the S x S matrix of cosines, as the paper defines it.
        eigenvalues = np.linalg.eigvalsh(rows @ rows.T / len(rows))
        eigenvalues = eigenvalues[eigenvalues > 1e-9]
        return -(eigenvalues * np.log(eigenvalues)).sum()
    if name == "log_determinant":
        width = rows.shape[1]
        matrix = width * rows.T @ rows / len(rows) + 0.01 * np.eye(width)
        return np.linalg.slogdet(matrix)[1] / width
    if name == "target":
        return ((rows.mean(0) - target) ** 2).sum()
    total = 0.0
    for group, wanted in (("en", 0.5), ("de", 0.3), ("fr", 0.2)):
        share = np.mean(language == group)
        total += share * np.log(share / wanted) if share else 0.0
    return total


@pytest.fixture
def made(tmp_path):
    """Each objective by name, and the mean of the target's vectors."""
    vectors = np.random.default_rng(5).normal(size=(7, 6))
    np.save(tmp_path / "target.npy", vectors)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    objectives = {
        "vendi": load_objective("benchmarks.spectrum:Vendi"),
        "log_determinant": load_objective("benchmarks.spectrum:LogDeterminant"),
        "language_balance": load_objective(
            "group_balance", {"column": "language", "shares": {"en": 0.5, "de": 0.3}}
        ),
        "target": load_objective("target", {"path": str(tmp_path / "target.npy")}),
    }
    assert all(objective.name == name for name, objective in objectives.items())
    return objectives, unit.mean(0)


NAMES = ["vendi", "log_determinant", "language_balance", "target"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_selected", [4, 15])
def test_values_follow_the_definition(made, name, num_selected):
    """Masks of fewer and of more documents than dimensions."""
    features, quality, scores, language = shard(30, 6, 1)
    random = np.random.default_rng(2)
    chosen = [random.choice(30, num_selected, replace=False) for _ in range(5)]
    masks = torch.zeros(5, 30, dtype=torch.bool)
    for mask, rows in zip(masks, chosen, strict=True):
        mask[rows] = True
    batch = Batch(
        torch.tensor(features),
        torch.tensor(quality, dtype=torch.float32),
        {key: torch.tensor(value) for key, value in scores.items()},
    )
    expected = [
        by_definition(name, features[rows].astype(np.float64), language[rows], made[1])
        for rows in chosen
    ]
    found = made[0][name].values(masks, batch).double().numpy()
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_is_the_gain_of_a_document(made, name):
    """Half of f(with j) − f(without j) at a fixed count, evaluating both, for some of 400."""
    features, quality, scores, _ = shard(400, 6, 3)
    data = shard_data(features, quality, scores, Compute(device="cpu"))
    term = WeightedTerm(made[0][name], 1.0)
    generator = torch.Generator().manual_seed(0)
    inclusion = torch.rand(400, generator=generator) * 0.6 + 0.05
    moments = moments_of(data, inclusion, 2)
    found = moment_gradient([term], moments, data, slice(None), inclusion)
    gains = []
    for row in range(0, 400, 10):
        values = []
        for inside in (0.0, 1.0):
            changed = inclusion.clone()
            changed[row] = inside
            sums = moments_of(data, changed, 2)
            held = type(sums)(
                moments.count, sums.quality, sums.scores, sums.first_D, sums.second_DD
            )
            values.append(float(term.factor * term.objective.of_moments(held)))
        gains.append(values[1] - values[0])
    picked = found[::10].double().numpy()
    np.testing.assert_allclose(picked, gains, rtol=0.06, atol=2e-3 * np.abs(gains).max())


def test_equal_and_missing_directions_give_a_finite_gradient():
    """Two directions in eight dimensions: six eigenvalues are 0, two are equal."""
    features = np.zeros((40, 8), np.float32)
    features[:20, 0] = features[20:, 1] = 1
    data = shard_data(features, np.zeros(40), {}, Compute(device="cpu"))
    inclusion = torch.full((40,), 0.5)
    moments = moments_of(data, inclusion, 2)
    for objective in (Vendi(), LogDeterminant()):
        term = WeightedTerm(objective, 1.0)
        gradient = moment_gradient([term], moments, data, slice(None), inclusion)
        assert bool(gradient.isfinite().all())
        torch.testing.assert_close(gradient, gradient[:1].expand(40))


def test_balance_brings_shares_to_their_targets():
    """Quality alone would take one language; with the term the shares are near the targets."""
    features, _, scores, language = shard(3000, 8, 7)
    quality = (language == "en") * 2.0 + np.random.default_rng(0).normal(size=3000)
    options = {"column": "language", "shares": {"en": 0.4, "de": 0.4}}
    terms = [{"name": "group_balance", "weight": 5.0, "options": options}]

    def shares(selection):
        compute = Compute(device="cpu")
        learned = learn_mask(
            features, quality, selection, 300, seed=0, scores=scores, compute=compute
        )
        return {name: np.mean(language[learned.selected] == name) for name in ("en", "de", "fr")}

    alone = shares(Selection(metric="disf", quality_weight=1.0))
    assert alone["en"] > 0.9
    balanced = shares(Selection(metric="disf", quality_weight=1.0, more_terms=terms))
    for name, target in (("en", 0.4), ("de", 0.4), ("fr", 0.2)):
        assert abs(balanced[name] - target) < 0.05


def test_the_formula_names_terms_as_tables_do():
    """Tables have the names of the objectives, also of two terms that balance groups."""
    terms = [
        {"name": "group_balance", "weight": 1, "options": {"column": column, "shares": ["x"]}}
        for column in ("language", "dump")
    ]
    selection = parse_settings(
        {"metric": "disf", "more_terms": [*terms, {"name": "length", "weight": -1}]}, Selection
    )
    names = [term.objective.name for term in build_terms(selection)]
    assert names == ["quality", "disf", "language_balance", "dump_balance", "length"]
    shown = formula(selection)
    assert all(f" · {name} / range({name})" in shown for name in names) and "group_b" not in shown
    assert {name: "+" if BUILT_IN[name].maximise else "−" for name in METRICS} == SIGNS


def test_options_that_make_no_sense_are_refused(tmp_path):
    """Each names what is wrong."""
    for options, message in (
        ({"column": "dump"}, "name at least one"),
        ({"column": "dump", "shares": {"a": 0.7, "b": 0.7}}, "add up"),
        ({"column": "dump", "shares": {"a": -0.1}}, "at least 0"),
    ):
        with pytest.raises(SettingsError, match=message):
            load_objective("group_balance", options)
    np.save(tmp_path / "wrong.npy", np.array([np.nan]))
    with pytest.raises(SettingsError, match="matrix of finite numbers"):
        load_objective("target", {"path": str(tmp_path / "wrong.npy")})
    with pytest.raises(SettingsError, match="ridge"):
        load_objective("benchmarks.spectrum:LogDeterminant", {"ridge": 0})
    assert LengthBalance().indicators == tuple(f"length={number}" for number in range(10))
    assert GroupBalance("dump", ["a", "b"]).shares["a"] == 0.5
    assert set(METRICS) == {"disf", "facility_location", "pairwise"}
    assert TargetCoverage.order == 1
