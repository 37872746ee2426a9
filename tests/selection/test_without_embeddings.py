"""A run that embeds and judges in one stage: the same masks, and no vectors on disk."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from datamask.cli.main import cli
from datamask.config.compute import Compute
from datamask.config.outputs import Sweep
from datamask.embedding.speed import embedding_speed
from datamask.errors import RunError
from datamask.execution.pipeline import rebuild
from datamask.planning.applying import settings_to_apply
from datamask.report.answer import answer
from datamask.report.redundancy import neighbours_path, sample_path
from datamask.report.sweep_page import run_sweep
from datamask.runs.opening import open_run
from datamask.runs.receipt import read_receipt
from datamask.runs.run import Run
from tests.finished import embedded, finish, settings

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture(scope="module")
def learnt(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with a mask model; its source serves as the new documents too."""
    return finish(tmp_path_factory.mktemp("learnt") / "run", settings(source), "mask_model")


@pytest.fixture(scope="module")
def kept(learnt: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The documents judged by a run that keeps embeddings."""
    chosen = settings_to_apply(learnt, learnt.settings.source)
    return rebuild(tmp_path_factory.mktemp("kept") / "run", chosen)


@pytest.fixture(scope="module")
def unkept(learnt: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The documents judged by the command without keeping embeddings, in small chunks."""
    root = tmp_path_factory.mktemp("unkept") / "run"
    arguments = ["apply", str(learnt.root), str(root)]
    for one in (f"source.path={learnt.settings.source.path}", "embedding.keep=false"):
        arguments += ["--set", one]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datamask.embedding.chunked.CHUNK", 7)
        result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    return open_run(root)


@pytest.mark.slow
def test_masks_are_those_of_kept_embeddings(unkept, kept):
    """To the number; nothing of the vectors is left on the disk."""
    for shard in range(unkept.num_shards):
        paths = [one.path("selection", shard) for one in (unkept, kept)]
        masks = [pq.read_table(path) for path in paths]
        assert masks[0].num_rows and masks[0].equals(masks[1])
        assert read_receipt(paths[0]).metrics == read_receipt(paths[1]).metrics
    assert not (unkept.root / "embeddings").exists()
    assert not list((unkept.root / "checkpoints").rglob("*.npz"))
    assert unkept.state("report") == kept.state("report") == "done"
    speed = embedding_speed(unkept)
    assert speed is not None and speed.documents_per_second > 0
    assert sum("keeps no embeddings" in line for line in answer(unkept).warnings) == 1
    assert not any("keeps no embeddings" in line for line in answer(kept).warnings)


@pytest.mark.slow
def test_the_report_compares_sampled_documents(unkept, kept):
    """A document's neighbour is the nearest of those drawn from the same set."""
    vectors = {}
    for shard in range(kept.num_shards):
        quality = pq.read_table(kept.path("quality", shard)).to_pylist()
        ids, matrix = embedded(kept.path("embeddings", shard), 32)
        of = dict(zip(ids, matrix.astype(np.float64), strict=True))
        vectors |= {(shard, row["row"]): of.get(row["id"]) for row in quality}
    documents = pq.read_table(neighbours_path(unkept)).to_pylist()
    groups = {(one["set"], one["shard"]) for one in documents}
    assert len(groups) == 3 * unkept.num_shards
    for group in groups:
        drawn = [one for one in documents if (one["set"], one["shard"]) == group]
        matrix = np.stack([vectors[group[1], one["row"]] for one in drawn])
        cosines = matrix @ matrix.T
        np.fill_diagonal(cosines, -np.inf)
        assert np.allclose([one["cosine"] for one in drawn], cosines.max(1), atol=2e-3)
    sampled = [pq.read_table(sample_path(one)) for one in (unkept, kept)]
    assert sampled[0]["id"].equals(sampled[1]["id"])


@pytest.mark.slow
def test_what_needs_embeddings_is_refused(unkept):
    """Arms that learn, and a sweep, each with the reason."""
    result = CliRunner().invoke(
        cli, ["evaluate", str(unkept.root), "--set", "evaluation.arms=[greedy, semdedup]"]
    )
    assert "arms of evaluation that select otherwise" in str(result.exception)
    with pytest.raises(RunError, match="embeddings"):
        run_sweep(unkept, Sweep(), Compute())
