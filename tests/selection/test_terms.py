"""The terms of a run's objective are made once per process, from the planned files."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from datamask.config.selection import Selection
from datamask.objectives import target
from datamask.objectives.weighted import build_terms
from datamask.selection.terms import terms_of
from tests import finished

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")


@pytest.mark.parametrize("scope", ["shard", pytest.param("corpus", marks=pytest.mark.slow)])
def test_a_file_is_loaded_once_per_process_and_content(tmp_path, scope, monkeypatch):
    """By planning and all stages of a run of several shards, and again only if it has changed."""
    path, loads = tmp_path / "target.npy", Counter[str]()
    vectors = np.random.default_rng(0).standard_normal((2, 20, 32)).astype(np.float32)
    np.save(path, vectors[0])
    load = np.load

    def counting(file: Any, **options: Any) -> Any:
        loads[str(file)] += 1
        return load(file, **options)

    monkeypatch.setattr(target.np, "load", counting)
    term = {"name": "target", "weight": 0.3, "path": str(path)}
    chosen = finished.settings(
        finished.corpus(tmp_path / "source"), selection={"scope": scope, "more_terms": [term]}
    )
    run = finished.finish(tmp_path / "run", chosen, "documents")
    assert run.num_shards > 2
    assert loads[str(path)] == 1
    terms = terms_of(run)
    np.save(path, vectors[1])
    other = build_terms(Selection(more_terms=[term]))
    assert loads[str(path)] == 2
    means = [found[-1].objective.mean_D for found in (terms, other)]
    assert not np.allclose(*means)
