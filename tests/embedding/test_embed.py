"""The embeddings stage: every survivor once, under its own id, whatever the chunks."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.models import random_bert
from datamask.config.compute import Compute
from datamask.config.loading import parse_settings
from datamask.embedding import chunked
from datamask.embedding.embed import embed_shard
from datamask.embedding.forward import Tokenised
from datamask.embedding.lexical import Lexical
from datamask.errors import CorruptFileError, InputError
from datamask.execution.attempts import ShardsFailedError
from datamask.execution.pipeline import run_stage
from datamask.runs.files import write_parquet
from datamask.runs.opening import open_run
from datamask.runs.receipt import read_receipt
from datamask.runs.records import read_record
from datamask.runs.run import Run
from tests.finished import embedded, finish, settings

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")


def test_every_survivor_has_its_own_vector(composed, source):
    """Ids are the quality files' survivors in order; vectors are those of the documents' texts."""
    run = composed
    text = {row["id"]: row["text"] for row in pq.read_table(source).to_pylist()}
    for shard in range(run.num_shards):
        rows = pq.read_table(run.path("quality", shard)).to_pylist()
        expected = [row["id"] for row in rows if row["dropped"] is None]
        ids, vectors = embedded(run.path("embeddings", shard), 32)
        assert ids == expected
        alone = np.concatenate([Lexical().embed([text[key]], 32) for key in expected])
        assert np.abs(vectors.astype(np.float32) - alone).max() < 1e-3
        assert run.receipt("embeddings", shard).metrics["encoder"] == "lexical"


def test_the_bytes_do_not_depend_on_the_chunk(composed, tmp_path, monkeypatch):
    """Chunks of 7 and of 4096 texts give the same file."""
    shutil.copytree(composed.root, tmp_path / "run")
    run = open_run(tmp_path / "run")
    before = run.path("embeddings", 1).read_bytes()
    run.path("embeddings", 1).unlink()
    monkeypatch.setattr(chunked, "CHUNK", 7)
    embed_shard(run, 1, Compute())
    assert run.path("embeddings", 1).read_bytes() == before


def test_a_quality_file_of_other_documents_is_refused(composed, tmp_path):
    """Ids in another order would give vectors to the wrong documents."""
    shutil.copytree(composed.root, tmp_path / "run")
    run = open_run(tmp_path / "run")
    path = run.path("quality", 0)
    receipt, table = read_receipt(path), pq.read_table(path)
    swapped = table.take([1, 0, *range(2, table.num_rows)])
    write_parquet(path, table.schema, [swapped], lambda rows: receipt, storage=run.storage)
    with pytest.raises(CorruptFileError, match=r"quality/00000\.parquet: other ids"):
        embed_shard(run, 0, Compute())


def feature_source(folder: Path, kind: pa.DataType, vectors: list) -> Path:
    """The published DATAMASK input in two row groups."""
    folder.mkdir()
    count = len(vectors)
    columns = {
        "chunk_id": pa.array(range(count)),
        "quality_score": pa.array(np.arange(count) / count),
        "feature_arr": pa.array(vectors, kind),
    }
    pq.write_table(pa.table(columns), folder / "a.parquet", row_group_size=5)
    return folder


def feature_run(root: Path, source: Path) -> Run:
    """Planned, scored and ready for embeddings."""
    data = {
        "source": {"path": str(source), "layout": "features"},
        "embedding": {"dimension": 4},
        "plan": {"rows_per_shard": 5},
        "quality": {"prune_fraction": 0.2},
    }
    return finish(root, parse_settings(data), "quality")


VECTORS = np.random.default_rng(2).standard_normal((10, 4)).astype(np.float16)


def test_a_bad_vector_is_named_by_its_place_in_the_source(tmp_path, monkeypatch):
    """File, shard, row of the file (not of what pruning left) and column."""
    # Of a remote file, planning reads only the first vectors.
    monkeypatch.setattr("datamask.planning.preflight_rows.FIRST_VECTORS", 5)
    monkeypatch.setattr("datamask.planning.preflight_rows.is_remote", lambda path: True)
    vectors = [*VECTORS[:8].tolist(), [1.0, 2.0], VECTORS[9].tolist()]
    source = feature_source(tmp_path / "s", pa.list_(pa.float32()), vectors)
    run = feature_run(tmp_path / "run", source)
    with pytest.raises(InputError) as caught:
        embed_shard(run, 1, Compute())
    place = f"file {source}/a.parquet, shard 00001, row 8, column feature_arr: 2 numbers wide"
    assert str(caught.value).startswith(place)
    assert not run.path("embeddings", 1).exists()


def model_run(root: Path, source: Path, model: Path) -> Run:
    """Ready for embeddings by a small transformer."""
    chosen = settings(
        source, embedding={"method": "sentence-transformer", "model": str(model), "dimension": 32}
    )
    return finish(root, chosen, "quality")


def test_a_model_s_shard_goes_on_to_the_same_bytes_and_tells_its_speed(
    source, tmp_path, monkeypatch
):
    """Broken off in the third chunk and gone on with: no chunk twice, no byte different."""
    from sentence_transformers import SentenceTransformer

    from datamask.embedding import sentence_transformer

    texts = pq.read_table(source, columns=["text"])["text"].to_pylist()
    model = random_bert(tmp_path / "model", texts, hidden=32, layers=1)
    run = model_run(tmp_path / "run", source, model)
    monkeypatch.setattr(chunked, "CHUNK", 8)
    compute = Compute(device="cpu", embedding_batch=2)
    run_stage(run, "embeddings", compute, shards=[0])
    undisturbed = run.path("embeddings", 0).read_bytes()
    record = read_record(run, "embeddings", 0)
    assert record is not None
    rows = pq.read_table(run.path("quality", 0)).to_pylist()
    text = {row["id"]: row["text"] for row in pq.read_table(source).to_pylist()}
    kept = [text[row["id"]] for row in rows if row["dropped"] is None]
    tokeniser = SentenceTransformer(str(model), device="cpu").tokenizer
    counts = [len(tokeniser("query: " + one)["input_ids"]) for one in kept]
    assert record.metrics["documents"] == len(kept)
    assert record.metrics["tokens"] == sum(counts)
    assert sum(counts) < record.metrics["padded_tokens"] < 2 * sum(counts)
    assert 0 < record.metrics["waited_seconds"] <= record.metrics["seconds"]

    run.path("embeddings", 0).unlink()
    real, calls = sentence_transformer._encode, []

    def breaking(model: object, tokenised: Tokenised, width: int) -> np.ndarray:
        calls.append(len(tokenised.windows.texts))
        if len(calls) == 3:
            raise OSError("the disk is gone")
        return real(model, tokenised, width)

    monkeypatch.setattr(sentence_transformer, "_encode", breaking)
    with pytest.raises(ShardsFailedError, match="the disk is gone"):
        run_stage(run, "embeddings", compute, shards=[0])
    run_stage(run, "embeddings", compute, shards=[0])
    assert run.path("embeddings", 0).read_bytes() == undisturbed
    assert sum(calls) - 8 == len(kept)
    record = read_record(run, "embeddings", 0)
    assert record is not None and record.attempts == 2
    assert record.metrics["documents"] == len(kept) - 2 * 8
