"""The data `semantic`: vectors, qualities and texts of an unfinished run belong together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.inputs import best_other_texts, load, semantic_documents
from datamask.config.compute import Compute
from datamask.config.loading import parse_settings
from datamask.embedding import lexical
from datamask.execution.pipeline import run_stage
from datamask.planning.plan import plan_run
from datamask.quality.heuristic import heuristic_scores
from tests.finished import up_to


@pytest.mark.parametrize("storage", ["float16", "int8"])
def test_semantic_is_the_beginning_of_the_run(tmp_path: Path, storage: str) -> None:
    """Two of three shards are embedded; vectors and order of qualities follow from the texts."""
    texts = [f"The text number {number} is about{' the thing' * number}." for number in range(30)]
    columns = {"id": [f"id{n}" for n in range(30)], "text": texts}
    (tmp_path / "corpus").mkdir()
    table = pa.table(columns | {"domain": ["a"] * 30, "dump": ["b"] * 30})
    pq.write_table(table, tmp_path / "corpus/texts.parquet")
    with pytest.raises(SystemExit, match=r"README\.md"):
        load(tmp_path, "semantic", 15)
    settings = {
        "source": {"path": str(tmp_path / "corpus")},
        "plan": {"rows_per_shard": 10},
        "quality": {"prune_fraction": 0},
        "embedding": {"method": "lexical", "dimension": 64, "storage": storage},
    }
    run = plan_run(tmp_path / "debian", parse_settings(settings))
    for stage in up_to(run, "quality"):
        run_stage(run, stage, Compute())
    run_stage(run, "embeddings", Compute(), shards=[0, 1])
    with pytest.raises(SystemExit, match="20 documents are embedded, 21 needed"):
        load(tmp_path, "semantic", 21)
    features, quality = load(tmp_path, "semantic", 15)
    assert semantic_documents(tmp_path, 15)["text"].to_pylist() == texts[:15]
    expected = lexical.embed(texts[:15], 64)
    assert np.allclose(np.asarray(features, np.float32), expected, atol=2e-3)
    scores = heuristic_scores(texts)[0]
    assert np.corrcoef(quality, scores[:15])[0, 1] == pytest.approx(1)
    best = sorted(texts[15:], key=lambda text: -scores[texts.index(text)])
    assert best_other_texts(tmp_path, 15, 4) == best[:4]
