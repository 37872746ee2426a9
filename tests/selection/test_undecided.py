"""Objectives whose best sums leave all documents undecided: masks are drawn then, and only then."""

import json
from pathlib import Path

import numpy as np
import pytest

from datamask.runs.run import Run
from tests.finished import finish
from tests.selection.runs import learn_vectors

ROWS, SHARDS, WIDTH = 400, 5, 8


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    """Unit vectors around a mean that is not 0."""
    rows = np.random.default_rng(0).normal(size=(ROWS * SHARDS, WIDTH)) + np.eye(WIDTH)[0]
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def select(root: Path, vectors: np.ndarray, **selection: object) -> tuple[Run, np.ndarray]:
    """A run up to its mask model, and its mask."""
    chosen = {"scope": "corpus", "metric": "pairwise", "rounds": 3, **selection}
    quality = np.sin(np.arange(len(vectors)))
    return learn_vectors(root, vectors, quality, SHARDS, selection=chosen)


def mean_cosine(rows: np.ndarray) -> float:
    """Of different rows, from the whole matrix of cosines."""
    cosines = rows @ rows.T
    return float((cosines.sum() - np.trace(cosines)) / (len(rows) * (len(rows) - 1)))


@pytest.mark.slow
def test_a_model_that_selects_worse_than_random_is_not_written(tmp_path, vectors):
    """Scope `shard` without quality: the documents of the highest gain are alike."""
    run, mask = select(tmp_path / "run", vectors, quality_weight=0.0, scope="shard")
    random = mean_cosine(vectors[np.random.default_rng(1).permutation(len(vectors))[: mask.sum()]])
    assert mean_cosine(vectors[mask]) < random
    model = json.loads(run.path("mask_model").read_text())
    assert "worse than random" in model["unavailable"]
    assert not run.path("mask_model").with_name("model.safetensors").exists()
    with_quality, _ = select(tmp_path / "other", vectors, quality_weight=0.5)
    assert not with_quality.receipt("learning", 0).metrics["drawn"]
    assert not json.loads(with_quality.path("mask_model").read_text())["unavailable"]


@pytest.mark.slow
def test_a_drawn_selection_has_the_sums_that_were_learned(tmp_path, vectors):
    """Without quality, a mean cosine near the least there is; no function of one document."""
    run, mask = select(tmp_path / "run", vectors, quality_weight=0.0)
    assert mask.sum() == len(vectors) // 10
    random = mean_cosine(vectors[np.random.default_rng(1).permutation(len(vectors))[: mask.sum()]])
    least = -1 / (mask.sum() - 1)
    assert mean_cosine(vectors[mask]) - least < 0.1 * (random - least)
    assert run.receipt("learning", 0).metrics["drawn"]
    model = json.loads(run.path("mask_model").read_text())
    assert "drawn" in model["unavailable"]
    finish(run.root, run.settings)
    assert "drawn with the inclusion probabilities" in run.path("report").read_text()
