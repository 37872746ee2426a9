"""Runs by quality alone or at random make no vectors, and select what they select with vectors."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.analysis.summary import query
from datamask.config.loading import parse_settings
from datamask.execution.pipeline import rebuild
from datamask.execution.verification import verify
from datamask.runs.run import Run
from datamask.runs.stages import stages_of
from tests.conftest import nightly

pytestmark = pytest.mark.usefixtures("undrawn")

ROWS = 60


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of documents, each a shard; every score occurs twice."""
    folder, generator = tmp_path_factory.mktemp("texts"), np.random.default_rng(0)
    for file in range(2):
        words = generator.integers(0, 50, (ROWS, 20))
        table = {
            "id": [f"{file}-{row * 7 % ROWS:02d}" for row in range(ROWS)],
            "text": [" ".join(f"word{word}" for word in row) for row in words],
            "edu": np.repeat(generator.normal(size=ROWS // 2), 2),
        }
        pq.write_table(pa.table(table), folder / f"{file}.parquet")
    return folder


def run_of(root: Path, source: Path, **selection: Any) -> Run:
    """A finished run of the source with lexical vectors, if it needs any."""
    settings = {
        "source": {"path": str(source)},
        "plan": {"rows_per_shard": ROWS},
        "quality": {"prune_fraction": 0.1, "scores": [{"name": "edu", "kind": "column"}]},
        "embedding": {"method": "lexical", "dimension": 16},
        "selection": selection,
    }
    settings["quality"]["scores"][0]["column"] = "edu"  # type: ignore[index]
    return rebuild(root, parse_settings(settings))


@pytest.mark.parametrize(
    "selection",
    [
        {"method": "top_quality"},
        *nightly({"method": "random", "scope": "corpus", "documents": 7}),
    ],
)
def test_the_selection_and_its_quality_are_those_of_a_run_with_vectors(tmp_path, source, selection):
    """Documents and the gain of quality are the same; only the other run has vectors."""
    without = run_of(tmp_path / "without", source, **selection)
    with_them = run_of(tmp_path / "with", source, metric="pairwise", **selection)
    assert not set(NONE) & {*stages_of(without.settings), *(p.name for p in without.root.iterdir())}
    assert [*with_them.root.glob("embeddings/*.parquet")]
    kept = "SELECT id, logit > 0 AS is_kept FROM selection ORDER BY id"
    assert query(without, kept) == query(with_them, kept)
    terms = "SELECT selected, random, best, top_quality FROM terms WHERE term = 'quality'"
    [ours], [theirs] = query(without, terms), query(with_them, terms)
    assert ours == pytest.approx(theirs, rel=1e-4)
    assert 'id="map"' not in without.path("report").read_text()
    assert 'id="map"' in with_them.path("report").read_text()
    assert verify(without).corrupt == ()


NONE = ("embeddings", "corpus_statistics", "round_total", "outcome")
"""Stages that only serve vectors."""


@pytest.mark.slow
def test_a_method_that_learns_makes_the_vectors_later(tmp_path, source):
    """The scores of the run without vectors are kept, and its vectors are added."""
    run = run_of(tmp_path / "run", source, method="top_quality")
    before = run.path("quality", 0).stat().st_mtime_ns
    run = run_of(tmp_path / "run", source, method="mask")
    assert run.states("embeddings") == ["done", "done"]
    assert run.path("quality", 0).stat().st_mtime_ns == before
