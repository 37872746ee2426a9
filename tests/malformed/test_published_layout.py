"""Faulty shards in the published layout are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.malformed.commands import assert_refused
from tests.malformed.inputs import ROWS, WIDTH, Cases, Make, features, rebuild


def vectors(**changes: Any) -> Make:
    """The published layout with other columns."""

    def make(folder: Path) -> list[str]:
        features(folder / "source", **changes)
        return rebuild(folder, source__layout="features")

    return make


def unit_vectors(**rows: Any) -> list[Any]:
    """Vectors, some of them replaced: `_3=None`."""
    made: list[Any] = [[1.0, 0.5, 0.25, 0.125]] * ROWS
    for name, value in rows.items():
        made[int(name[1:])] = value
    return made


VECTORS: Cases = {
    "ragged embeddings": (
        vectors(feature_arr=unit_vectors(_3=[1.0])),
        "0.parquet, row 3, column feature_arr: 1 numbers wide; embedding.dimension is 4; fix",
    ),
    "embeddings of another width": (
        vectors(feature_arr=pa.array([[1.0] * 3] * ROWS, pa.list_(pa.float32(), 3))),
        "column feature_arr: 3 numbers wide; set embedding.dimension (4) to that",
    ),
    "NaN in an embedding": (
        vectors(feature_arr=unit_vectors(_5=[1.0, float("nan"), 0.0, 0.0])),
        "0.parquet, row 5, column feature_arr: NaN or infinite number",
    ),
    "embedding of zeros": (
        vectors(feature_arr=unit_vectors(_7=[0.0] * WIDTH)),
        "0.parquet, row 7, column feature_arr: all zeros, has no direction; fix it or drop",
    ),
    "null embedding": (
        vectors(feature_arr=unit_vectors(_2=None)),
        "0.parquet, row 2, column feature_arr: null; give every document an embedding",
    ),
}


@pytest.mark.parametrize("name", VECTORS)
def test_bad_input_gets_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Embeddings, scores and ids of the published layout that cannot be used."""
    assert_refused(VECTORS[name], tmp_path, capsys)
