"""Vectors of the user's own, beside the text: the same as made ones, or one line before work."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.config.compute import Compute
from datamask.config.loading import parse_settings
from datamask.embedding.embed import embed_shard
from datamask.embedding.lexical import Lexical
from datamask.errors import DatamaskError, InputError, SettingsError
from datamask.execution.pipeline import run_stage
from datamask.planning.first_settings import look
from datamask.planning.plan import plan_run
from tests.finished import corpus, embedded, finish, selected_ids, settings

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")


def with_vectors(folder: Path, kind: pa.DataType, scale: float = 1.0) -> dict[str, np.ndarray]:
    """Write the usual corpus with its lexical vectors in column `vec`; return them by id."""
    corpus(folder)
    known = {}
    for path in sorted(folder.glob("*.parquet")):
        table = pq.read_table(path)
        matrix = Lexical().embed(table["text"].to_pylist(), 32) * scale
        if pa.types.is_integer(kind.value_type):
            matrix = np.rint(matrix)
        known |= dict(zip(table["id"].to_pylist(), matrix, strict=True))
        column = pa.array(list(matrix.astype(kind.value_type.to_pandas_dtype())), kind)
        pq.write_table(table.append_column("vec", column), path, row_group_size=12)
    return known


def own(folder: Path, **embedding: object) -> object:
    """The usual settings with vectors of one's own."""
    return settings(folder, embedding=embedding)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """The usual corpus, and its vectors in another order in a Parquet and an .npy file."""
    known = with_vectors(tmp_path / "with", pa.list_(pa.float32()))
    order = np.random.default_rng(1).permutation(sorted(known))
    folder = tmp_path / "vectors"
    folder.mkdir()
    write(folder, known, order)
    return folder, known


def write(folder: Path, known: dict[str, np.ndarray], order: np.ndarray) -> None:
    """Write some vectors to a Parquet file, and the others to an .npy file with their ids."""
    first, rest = order[:50].tolist(), order[50:].tolist()
    vectors = pa.array([known[key] for key in first], pa.list_(pa.float32()))
    table = pa.table({"doc": first, "embedding": vectors})
    pq.write_table(table, folder / "a.parquet", row_group_size=7)
    np.save(folder / "b.npy", np.stack([known[key] for key in rest]))
    pq.write_table(pa.table({"doc": rest}), folder / "b.parquet")


def test_a_column_of_vectors_selects_what_the_embedder_selects(composed, tmp_path):
    """The vectors that `lexical` makes, given as a column, lead to the same documents."""
    with_vectors(tmp_path / "source", pa.list_(pa.float32(), 32), scale=3)
    chosen = own(tmp_path / "source", method="column", column="vec")
    run = finish(tmp_path / "run", chosen, "selection")
    for shard in range(run.num_shards):
        paths = [each.path("embeddings", shard) for each in (composed, run)]
        (ids, vectors), (same, given) = (embedded(path, 32) for path in paths)
        assert ids == same
        assert np.abs(vectors.astype(float) - given.astype(float)).max() < 1e-3
    assert selected_ids(run) == selected_ids(composed)


def test_files_of_vectors_are_joined_by_id(composed, source, files, tmp_path):
    """Parquet and .npy files in any order give every document its own vector."""
    folder, known = files
    chosen = own(source, method="files", path=str(folder), id_column="doc")
    run = finish(tmp_path / "run", chosen, "selection")
    for shard in range(run.num_shards):
        ids, vectors = embedded(run.path("embeddings", shard), 32)
        assert np.abs(vectors.astype(float) - np.stack([known[key] for key in ids])).max() < 1e-3
    assert selected_ids(run) == selected_ids(composed)
    # Files that were written again in the meantime are not read.
    write(folder, known, np.array(sorted(known)))
    with pytest.raises(InputError, match="has changed"):
        embed_shard(run, 0, Compute())
    run.path("vector_places", 0).unlink()
    with pytest.raises(DatamaskError, match="has changed"):
        run_stage(run, "vector_places", Compute())


def test_int8_vectors_are_read_and_recognised(tmp_path):
    """`init` proposes a column of int8, and its directions are the vectors."""
    known = with_vectors(tmp_path / "source", pa.list_(pa.int8(), 32), scale=100)
    proposed = look(str(tmp_path / "source"))
    assert proposed.settings["embedding"] == {"method": "column", "column": "vec", "dimension": 32}
    assert not proposed.problems
    chosen = own(tmp_path / "source", method="column", column="vec")
    run = finish(tmp_path / "run", chosen, "embeddings")
    ids, vectors = embedded(run.path("embeddings", 0), 32)
    expected = np.stack([known[key] / np.linalg.norm(known[key]) for key in ids])
    assert np.abs(vectors.astype(float) - expected).max() < 1e-3


@pytest.mark.parametrize("bad", [[1.0] * 31, [0.0] * 32])
def test_a_bad_vector_is_refused_when_planned(bad, source, files, tmp_path):
    """In a column or a file, wherever it is: file, row and column, and nothing is written."""
    folder, _ = files
    for path, name, embedding in (
        (tmp_path / "with" / "2.parquet", "vec", {"method": "column", "column": "vec"}),
        (folder / "a.parquet", "embedding", {"method": "files", "path": str(folder)}),
    ):
        table = pq.read_table(path)
        vectors = table[name].to_pylist()
        vectors[25] = bad
        column = pa.array(vectors, pa.list_(pa.float32()))
        pq.write_table(table.set_column(table.schema.get_field_index(name), name, column), path)
        chosen = own(tmp_path / "with", id_column="doc", **embedding)
        with pytest.raises(InputError) as caught:
            plan_run(tmp_path / "run", chosen)
        error = caught.value
        assert (str(error.path), error.row, error.column) == (str(path), 25, name)
        assert not (tmp_path / "run").exists()


def test_documents_without_a_vector_are_refused_when_planned(source, files, tmp_path):
    """So are ids that occur twice, vectors of another width, and an .npy file without its ids."""
    folder, known = files
    chosen = own(source, method="files", path=str(folder), id_column="doc")

    def refused() -> InputError:
        with pytest.raises(InputError) as caught:
            plan_run(tmp_path / "run", chosen)
        return caught.value

    some = np.array(sorted(known))
    write(folder, known, some[some != "1-04"])
    error = refused()
    assert (Path(error.path).name, error.row) == ("1.parquet", 4)
    write(folder, known, np.array([*some, some[3]]))
    assert refused().column == "doc"
    write(folder, known, some)
    np.save(folder / "b.npy", np.ones((70, 33), np.float32))
    assert str(refused().path) == str(folder / "b.npy")
    for rows, kept in ((69, None), (70, -20), (70, -128)):  # another number, and a file cut off
        np.save(folder / "b.npy", np.ones((rows, 32), np.float32))
        (folder / "b.npy").write_bytes((folder / "b.npy").read_bytes()[:kept])
        assert str(refused().path) == str(folder / "b.npy")
    (folder / "b.parquet").unlink()
    assert str(refused().path) == str(folder / "b.parquet")


def test_names_of_layout_features_can_be_set(tmp_path):
    """Ids, score and vectors of a source without text have any names."""
    vectors = np.random.default_rng(2).standard_normal((10, 4))
    (tmp_path / "s").mkdir()
    columns = {"key": range(10), "edu": np.arange(10) / 10, "vec": list(vectors)}
    pq.write_table(pa.table(columns), tmp_path / "s" / "a.parquet")
    score = {"name": "edu", "kind": "column", "column": "edu"}
    data = {
        "source": {"path": str(tmp_path / "s"), "layout": "features", "columns": {"id": "key"}},
        "quality": {"scores": [score]},
        "embedding": {"dimension": 4, "column": "vec"},
    }
    run = finish(tmp_path / "run", parse_settings(data), "embeddings")
    ids, imported = embedded(run.path("embeddings", 0), 4)
    assert ids == [f"{row}" for row in range(10)]
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert np.abs(imported.astype(float) - unit).max() < 1e-3


def test_settings_of_vectors_that_do_not_fit_are_refused():
    """A path belongs to method `files`, and texts from elsewhere need an embedder."""
    for wrong in ({"method": "files"}, {"method": "column", "path": "vectors"}):
        with pytest.raises(SettingsError):
            parse_settings({"embedding": wrong})
    from datamask.embedding.loose_texts import embed_texts

    chosen = parse_settings({"embedding": {"method": "column"}}).embedding
    with pytest.raises(SettingsError):
        embed_texts(["a text"], chosen, Compute())


@pytest.mark.slow
def test_held_out_documents_have_the_topics_of_their_own_vectors(files, source, tmp_path):
    """From a column and from files, as from the embedder that made them."""
    folder, _ = files
    trained = {"hold_out": 0.4, "hold_out_by": "topic", "arms": ["ours", "random"], "tokens": 1000}
    more = {"topics": {"number": 2}, "evaluation": {**trained, "model": "tiny", "seeds": 2}}
    chosen = {
        "made": settings(source, **more),
        "column": settings(
            tmp_path / "with", embedding={"method": "column", "column": "vec"}, **more
        ),
        "files": settings(
            source, embedding={"method": "files", "path": str(folder), "id_column": "doc"}, **more
        ),
    }
    runs = [finish(tmp_path / name, its, "held_out") for name, its in chosen.items()]
    made, *own = [pq.read_table(run.path("held_out")).to_pylist() for run in runs]
    topics = {row["id"]: row["group"] for row in made}
    assert len({*topics.values()}) > 1
    for rows in own:
        assert {row["id"]: row["group"] for row in rows} == topics
