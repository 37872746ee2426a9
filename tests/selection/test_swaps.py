"""Swaps of all shards after the last round: their sums, when they are applied, what they give."""

from pathlib import Path

import numpy as np
import pytest
import torch

from datamask.analysis.composition import query
from datamask.config.compute import Compute
from datamask.config.selection import Selection
from datamask.learning import swap_refinement
from datamask.learning.data import moments_of
from datamask.learning.learner import shard_data
from datamask.learning.swap_refinement import refine_part
from datamask.objectives.weighted import build_terms
from datamask.runs.run import Run
from datamask.selection import rounds
from datamask.selection.sums import read_lists, read_moments
from tests.finished import corpus
from tests.selection.runs import by_definition, learn, learn_vectors

ROWS, SHARDS, WIDTH = 150, 6, 12
EVERY = {"scope": "corpus", "rounds": 2, "quality_weight": 0.1, "scale_terms": False}


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    """Unit vectors, each with three near-copies somewhere in the corpus."""
    random = np.random.default_rng(0)
    own = random.normal(size=(ROWS * SHARDS // 4, WIDTH)) * np.linspace(1, 3, WIDTH)
    rows = np.repeat(own, 4, axis=0) + 0.1 * random.normal(size=(ROWS * SHARDS, WIDTH))
    rows = rows[random.permutation(len(rows))]
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)


def select(
    root: Path, vectors: np.ndarray, last: str = "selection", **selection: object
) -> tuple[Run, np.ndarray]:
    """A run up to a stage, and its mask."""
    marks = np.sin(np.arange(len(vectors))) / 100
    groups = {
        "quality": {"prune_fraction": 0, "duplicates": "keep"},
        "selection": EVERY | selection,
    }
    return learn_vectors(root, vectors, marks, SHARDS, last, **groups)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, vectors: np.ndarray) -> np.ndarray:
    """The mask without swaps."""
    run, mask = select(tmp_path_factory.mktemp("plain") / "run", vectors, swap_refinement=0)
    assert not (run.root / "swaps").exists()
    return mask


def objective(vectors: np.ndarray, mask: np.ndarray) -> float:
    """Of the unscaled terms, by definition."""
    quality = np.sin(np.flatnonzero(mask)) / 100
    values = by_definition(vectors[mask].astype(np.float64), quality, "disf")
    return 0.1 * values["quality"] - 0.9 * values["disf"]


@pytest.mark.slow
def test_swaps_raise_the_objective_of_the_corpus(tmp_path, vectors, plain):
    """Against a run without them, by definition; what is written is what changes the sums."""
    run, mask = select(tmp_path / "run", vectors, "report")
    assert mask.sum() == plain.sum() == len(mask) // 10
    assert objective(vectors, mask) > objective(vectors, plain)
    told = run.receipt("swaps_total").metrics
    assert told["applied"] and told["objective"]["with"] > told["objective"]["without"]
    for name, one in (("with", mask), ("without", plain)):
        assert told["objective"][name] == pytest.approx(objective(vectors, one), rel=0.01)
    (row,) = query(run, "FROM terms WHERE term = 'objective'")
    assert row["selected"] == pytest.approx(objective(vectors, mask), rel=1e-4)
    total, number = np.zeros((WIDTH, WIDTH)), 0
    for shard, rows in enumerate(np.split(vectors.astype(np.float64), SHARDS)):
        moved = read_lists(run, "swaps", ("leaving", "coming"), shard)
        leaving, coming = rows[moved["leaving"]], rows[moved["coming"]]
        assert len(leaving) == len(coming)
        swapped, unswapped = read_moments(run, "swaps", [shard])
        change = swapped.second_DD.numpy() - unswapped.second_DD.numpy()
        np.testing.assert_allclose(
            change, coming.T @ coming - leaving.T @ leaving, rtol=1e-3, atol=1e-4
        )
        assert float(swapped.count) == pytest.approx(float(unswapped.count), abs=1e-3)
        total, number = total + swapped.second_DD.numpy(), number + len(coming)
    sums, _ = read_moments(run, "swaps_total", [0])
    np.testing.assert_allclose(sums.second_DD.numpy(), total, rtol=1e-6, atol=1e-9)
    assert told["swaps"] == number > 0
    assert f"then swapped {number:,} documents" in run.path("report").read_text()


@pytest.mark.slow
def test_swaps_that_together_change_too_much_are_refused(tmp_path, vectors, plain, monkeypatch):
    """Shards that hardly count what they change swap until the objective of all falls."""
    monkeypatch.setattr(swap_refinement, "OWN_WEIGHT", 0.02)
    run, mask = select(tmp_path / "run", vectors)
    told = run.receipt("swaps_total").metrics
    assert told["swaps"] > 0 and not told["applied"]
    assert told["objective"]["with"] < told["objective"]["without"]
    assert (mask == plain).all()


@pytest.mark.slow
def test_sums_that_no_selection_has_swap_nothing(tmp_path, monkeypatch):
    """A log-determinant has no value for sums in which shards count their documents twice."""
    few = {"scope": "corpus", "rounds": 3, "metric": "log_determinant", "quality_weight": 0.0}
    source = corpus(tmp_path / "source")
    run = learn(tmp_path / "run", source, selection=few)
    assert run.receipt("swaps_total").metrics["swaps"] > 0

    def twice(data, terms, mask, inclusion, *others):
        return refine_part(data, terms, mask, 2 * inclusion, *others)

    monkeypatch.setattr(rounds, "refine_part", twice)
    run = learn(tmp_path / "other", source, selection=few)
    told = run.receipt("swaps_total").metrics
    assert (told["swaps"], told["applied"]) == (0, False)


@pytest.mark.parametrize("seed", range(4))
def test_a_part_rises_within_a_selection(seed, monkeypatch):
    """By definition, over documents of the part and of the rest; at most so many are swapped."""
    monkeypatch.setattr(swap_refinement, "OWN_WEIGHT", 1.0)
    random = np.random.default_rng(seed)
    rows = random.normal(size=(80, 6)).astype(np.float16)
    quality, rest = random.normal(size=80), np.arange(80) >= 40
    chosen = rest & (random.random(80) < 0.3)
    part, inclusion = ~rest & (random.random(80) < 0.3), random.random(40)
    terms = build_terms(Selection(metric="disf", quality_weight=0.1, scale_terms=False))

    def data(which: np.ndarray):
        return shard_data(rows[which], quality[which], {}, Compute())

    weights = np.where(rest, chosen, np.concatenate([inclusion, np.zeros(40)]))
    selection = moments_of(data(rest | ~rest), torch.from_numpy(weights).float(), 2)

    def value(mask: np.ndarray) -> float:
        both = mask | chosen
        values = by_definition(rows[both].astype(np.float64), quality[both], "disf")
        return 0.1 * values["quality"] - 0.9 * values["disf"]

    values = [value(part)]
    for most in (1, 100):
        given = (torch.from_numpy(part[:40]), torch.from_numpy(inclusion).float())
        found = refine_part(data(~rest), terms, *given, most, selection).numpy()
        refined = np.concatenate([found, np.zeros(40, bool)])
        assert refined.sum() == part.sum()
        assert (refined & ~part).sum() <= most
        values.append(value(refined))
    assert values[0] < values[1] <= values[2]
