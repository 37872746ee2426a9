"""Vectors are embedded once, however often it changes which documents survive pruning."""

import pyarrow.parquet as pq
import pytest

from benchmarks.models import random_bert
from datamask.config.compute import Compute
from datamask.config.settings import Settings
from datamask.embedding import embed
from datamask.execution.pipeline import run_stage
from datamask.runs.records import read_record
from datamask.runs.run import Run
from tests.conftest import nightly
from tests.finished import corpus, finish, settings

pytestmark = pytest.mark.usefixtures("roughly")


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several row groups in a shard, as in a large one."""
    monkeypatch.setattr(embed, "ROWS_PER_GROUP", 8)


def counts(run: Run) -> list[tuple[float, float]]:
    """Vectors reused and documents embedded, by shard."""
    records = [read_record(run, "embeddings", shard) for shard in range(run.num_shards)]
    metrics = [record.metrics for record in records if record is not None]
    return [(one["reused"], one.get("documents", 0)) for one in metrics]


def survivors(run: Run) -> list[set[str]]:
    """Ids of the documents to embed, by shard, from the quality files."""
    tables = [pq.read_table(run.path("quality", s)).to_pylist() for s in range(run.num_shards)]
    return [{row["id"] for row in table if row["dropped"] is None} for table in tables]


@pytest.mark.parametrize("storage", ["float16", *nightly("int8")])
def test_pruning_otherwise_embeds_only_documents_that_had_no_vector(source, tmp_path, storage):
    """The files equal the files of a run that never was another."""

    def chosen(weight: float, share: float) -> Settings:
        scores = [
            {"name": "edu", "kind": "column", "column": "edu"},
            {"name": "heuristic", "weight": weight},
        ]
        quality = {"scores": scores, "prune_fraction": share}
        return settings(source, quality=quality, embedding={"storage": storage})

    run = finish(tmp_path / "run", chosen(0.05, 0.5), "embeddings")
    before = survivors(run)
    run = finish(tmp_path / "run", chosen(5, 0.4), "embeddings")
    fresh = finish(tmp_path / "fresh", chosen(5, 0.4), "embeddings")
    pairs = list(zip(before, survivors(run), strict=True))
    assert all(old & new and new - old and old - new for old, new in pairs)
    assert counts(run) == [(len(old & new), len(new - old)) for old, new in pairs]
    for shard in range(run.num_shards):
        expected = fresh.path("embeddings", shard).read_bytes()
        assert run.path("embeddings", shard).read_bytes() == expected


def test_no_model_is_loaded_for_documents_that_have_vectors(source, tmp_path, monkeypatch):
    """More pruning reads neither texts nor model; another encoder embeds all again."""
    texts = pq.read_table(source, columns=["text"])["text"].to_pylist()
    folder = random_bert(tmp_path / "bert", texts, hidden=32, layers=1)
    model = {"method": "sentence-transformer", "model": str(folder)}
    run = finish(tmp_path / "run", settings(source, embedding=model), "embeddings")
    fewer = settings(source, embedding=model, quality={"prune_fraction": 0.4})
    with monkeypatch.context() as patch:
        patch.setattr(embed, "_embedder", None)
        run = finish(tmp_path / "run", fewer, "embeddings")
    assert counts(run) == [(len(kept), 0) for kept in survivors(run)]
    longer = settings(source, embedding={**model, "prefix": "passage: "})
    run = finish(tmp_path / "run", longer, "embeddings")
    assert counts(run) == [(0, len(kept)) for kept in survivors(run)]


def test_a_damaged_file_is_not_reused(tmp_path):
    """Documents are embedded again where vectors, a footer or a checksum are damaged."""
    source, small = corpus(tmp_path / "source"), {"rows_per_shard": 30}
    run = finish(tmp_path / "run", settings(source, plan=small), "embeddings")
    for shard in (0, 1):
        path = run.local_path("embeddings", shard)
        content = bytearray(path.read_bytes())
        content[-5 if shard else len(content) // 2] ^= 1
        path.write_bytes(content)
    (run.root / "records/embeddings/00002.parquet.json").unlink()
    fewer = settings(source, plan=small, quality={"prune_fraction": 0.4})
    run, fresh = (finish(tmp_path / name, fewer, "embeddings") for name in ("run", "fresh"))
    assert [reused > 0 for reused, _ in counts(run)] == [False, False, False, True]
    for shard in range(4):
        vectors = fresh.path("embeddings", shard).read_bytes()
        assert run.path("embeddings", shard).read_bytes() == vectors


def test_a_forced_shard_is_embedded_again(tmp_path):
    """Finished vectors are made again from the texts, not from themselves."""
    run = finish(tmp_path / "run", settings(corpus(tmp_path / "source")), "embeddings")
    run_stage(run, "embeddings", Compute(), shards=[1], force=True)
    assert counts(run)[1] == (0, len(survivors(run)[1]))


def test_an_error_of_the_source_does_not_accuse_the_earlier_file(source, tmp_path, monkeypatch):
    """An error of the embedder while vectors are reused is reported as it is."""
    more = {"quality": {"prune_fraction": 0.4}}
    finish(tmp_path / "run", settings(source, **more), "embeddings")
    run = finish(tmp_path / "run", settings(source), "quality")

    def fail(*_: object) -> None:
        raise ValueError("the model fails")

    monkeypatch.setattr(embed, "_wanted", fail)
    with pytest.raises(ValueError, match=r"^the model fails$"):
        embed.embed_shard(run, 0, Compute())
