"""Embedding columns as matrices: every accepted type, and every refusal with its place."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.embedding import vectors
from datamask.errors import CorruptFileError, InputError
from datamask.runs import schemas

VALUES = [[1.0, 2.0, 2.0], [0.5, 0.0, -0.5]]


@pytest.mark.parametrize("number", [pa.float16(), pa.float32(), pa.float64()])
@pytest.mark.parametrize("kind", [pa.list_, pa.large_list, lambda number: pa.list_(number, 3)])
def test_list_types(kind, number):
    """Every list type of every float width gives the same float32 matrix, sliced or chunked."""
    column = pa.array([[9.0, 9.0, 9.0], *VALUES], kind(number)).slice(1)
    for given in (column, pa.chunked_array([column.slice(0, 1), column.slice(1)])):
        matrix = vectors.to_matrix(given, 3, path="a.parquet")
        assert matrix.dtype == np.float32
        assert matrix.tolist() == VALUES


@pytest.mark.parametrize(
    "bad", [None, [1.0, 2.0], *([1.0, 2.0, x] for x in (float("nan"), float("inf"), 1e300, None))]
)
def test_refusals_name_the_row(bad):
    """A null, a wrong width and a number that is not finite are told with file, row and column."""
    column = pa.array([VALUES[0], bad], pa.list_(pa.float64()))
    with pytest.raises(InputError) as caught:
        vectors.to_matrix(column, 3, path="a.parquet")
    assert all(part in str(caught.value) for part in ("a.parquet", "row 1", "feature_arr"))


def test_int8_is_read_back_within_half_a_step(tmp_path):
    """Each number is off by at most 1/254 of its row's largest; rows have unit length again."""
    generator = np.random.default_rng(3)
    matrix = vectors.normalise(generator.standard_normal((300, 24)).astype(np.float32))
    ids = pa.array([f"{row}" for row in range(300)])
    schema = schemas.embeddings(24, "int8")
    columns = [ids, *vectors.to_columns(matrix, "int8"), pa.nulls(300, pa.float32())]
    table = pa.Table.from_arrays(columns, schema=schema)
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=70)
    found = vectors.read_vectors(tmp_path / "a.parquet", 24)
    assert found.dtype == np.float16
    stored = np.array([[*memoryview(row).cast("b")] for row in table["feature_arr"].to_pylist()])
    assert np.abs(stored).max(axis=1).tolist() == [127] * 300
    largest = np.abs(matrix).max(axis=1, keepdims=True)
    back = stored * np.array(table["scale"].to_pylist())[:, None]
    assert (np.abs(back - matrix) <= largest / 254 + 1e-6).all()
    assert np.allclose(found, back / np.linalg.norm(back, axis=1, keepdims=True), atol=5e-4)
    some = np.array([0, 69, 70, 299])
    assert (vectors.read_vectors(tmp_path / "a.parquet", 24, some) == found[some]).all()
    with pytest.raises(CorruptFileError, match="300 embeddings, but row 300 is needed"):
        vectors.read_vectors(tmp_path / "a.parquet", 24, np.array([3, 300]))
    odd = pa.table({"chunk_id": ids, "feature_arr": pa.array(matrix.tolist())})
    pq.write_table(odd, tmp_path / "b.parquet")
    for name, width in (("a", 25), ("b", 24)):
        with pytest.raises(CorruptFileError, match=f"needed width {width}"):
            vectors.read_vectors(tmp_path / f"{name}.parquet", width)
