"""Greedy on lists of nearest documents, against greedy on all pairs by its definition."""

import numpy as np
import pytest

from benchmarks import neighbour_script


@pytest.mark.parametrize("seed", range(3))
def test_greedy_on_lists_of_all_documents_is_greedy_on_all_pairs(seed, monkeypatch):
    """The same rows in the same order as when every gain is computed anew for every choice."""
    rows, count = 40, 12
    monkeypatch.setattr(neighbour_script, "NEIGHBOURS", rows)
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(rows, 5))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines, bonus = vectors @ vectors.T, 0.02 * random.normal(size=rows)
    covered, chosen = cosines.min(1), list[int]()
    for _ in range(count):
        gains = bonus + np.maximum(cosines - covered[:, None], 0).mean(0)
        gains[chosen] = -np.inf
        chosen.append(int(gains.argmax()))
        covered = np.maximum(covered, cosines[:, chosen[-1]])
    near = np.argsort(-cosines, axis=1)
    found = neighbour_script.greedy(np.take_along_axis(cosines, near, 1), near, bonus, count)
    assert found.tolist() == chosen
