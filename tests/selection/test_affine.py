"""Quality on another scale selects the same documents, and quality that is too large is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import datamask
from datamask.config.loading import parse_settings
from datamask.errors import InputError, SettingsError
from datamask.runs.run import Run
from tests.selection.runs import kept, learn_vectors

ROWS, WIDTH = 120, 8
RANDOM = np.random.default_rng(5)
VECTORS = RANDOM.standard_normal((ROWS, WIDTH)).astype(np.float32)
UNIT = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
# Multiples of 1/1024, so that few sums with a large constant are rounded.
QUALITY = np.round(RANDOM.standard_normal(ROWS) * 1024) / 1024

FACTORS = st.builds(lambda a, power: a * 10.0**power, st.floats(1, 10), st.integers(-290, 20))
LEVELS = st.builds(lambda b, power: b * 10.0**power, st.floats(-1, 1), st.integers(-3, 8))


@settings(max_examples=12, deadline=None)
@given(factor=FACTORS, level=LEVELS, metric=st.sampled_from(["disf", "pairwise"]))
def test_scale_and_level_of_quality_change_no_selection(factor, level, metric):
    """`select` keeps the same rows; the values reported are on the scale."""
    how: dict[str, Any] = {"ratio": 0.1, "metric": metric}
    moved = factor * (QUALITY + level)
    expected = datamask.select(UNIT, QUALITY, **how)
    result = datamask.select(UNIT, moved, **how)
    assert result.indices.tolist() == expected.indices.tolist()
    before, after = expected.summary()[0], result.summary()[0]
    for name in ("selected", "random", "top_quality"):
        value = factor * (getattr(before, name) + level)
        assert getattr(after, name) == pytest.approx(value, abs=1e-6 * factor * (1 + abs(level)))


def selected(folder: Path, quality: np.ndarray, **selection: Any) -> tuple[list[str], Run]:
    """The ids that a run of three shards of layout `features` selects, and the run."""
    chosen = {"steps": 40, "ratio": 0.1, "metric": "disf", **selection}
    last = "selection" if "mask_model" in selection else "mask_model"
    run, _ = learn_vectors(folder / "run", UNIT, quality, 3, last, selection=chosen)
    return [str(row["id"]) for row in kept(run)], run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("selection", "factor", "level"),
    [
        ({}, 3e-200, -1e5),
        ({"scope": "corpus"}, 7e12, 1e8),
        ({"scope": "corpus", "rounds": 1}, 3e-200, -1e5),
    ],
    ids=str,
)
def test_scale_and_level_change_no_run(tmp_path, selection, factor, level):
    """Runs of either scope keep the same documents, and so do mask models learned from them."""
    moved, selection = factor * (QUALITY + level), selection | {"quality_weight": 0.7}
    expected, run = selected(tmp_path / "before", QUALITY, **selection)
    ids, other = selected(tmp_path / "after", moved, **selection)
    assert ids == expected
    judged = [
        selected(
            tmp_path / name, values, quality_weight=0.7, mask_model=str(made.root / "mask_model")
        )[0]
        for name, values, made in (("a", QUALITY, run), ("b", moved, other))
    ]
    assert judged[0] == judged[1] and judged[0]


@pytest.mark.parametrize("value", [1e38, -1e31, np.inf])
def test_quality_beyond_float32_is_refused_by_its_name(tmp_path, value):
    """In memory with the row, in a run with the score's column, and as a setting."""
    large = np.append(value, QUALITY[1:])
    with pytest.raises(InputError) as caught:
        datamask.select(UNIT, large)
    assert caught.value.column == "quality" and caught.value.row == 0
    with pytest.raises(InputError) as caught:
        datamask.select(UNIT, QUALITY, scores={"edu": large})
    assert caught.value.column == "edu"
    with pytest.raises(InputError) as caught:
        selected(tmp_path, large)
    assert caught.value.column == "quality_score"
    with pytest.raises(SettingsError, match="missing"):
        parse_settings({"quality": {"scores": [{"missing": value}]}})
