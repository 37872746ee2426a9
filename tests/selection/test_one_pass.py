"""Scope `corpus` in one round: judged in one pass, with exact sums of the result."""

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.analysis.summary import query
from datamask.config.compute import Compute
from datamask.embedding import embed
from datamask.execution.pipeline import rebuild, run_stage
from datamask.planning.applying import settings_to_apply
from datamask.report.answer import answer
from datamask.runs.run import Run
from datamask.runs.stages import stages_of
from datamask.selection import sampling
from datamask.selection.documents import read_quality, with_vectors
from tests.conftest import nightly
from tests.finished import embedded, finish, rows_of, settings, table_of
from tests.selection.runs import by_definition

pytestmark = pytest.mark.usefixtures("undrawn")

ONCE = {"scope": "corpus", "rounds": 1}
LEARNING = ("corpus_statistics", "round_total", "round", "learning")
LEARNING += ("threshold", "selection", "outcome")


def masks(run: Run) -> list[dict[str, object]]:
    """All documents that could be selected."""
    return [row for shard in range(run.num_shards) for row in rows_of(run, shard)]


def vectors(run: Run) -> dict[str, np.ndarray]:
    """The vectors of a run that keeps them, by id."""
    found: dict[str, np.ndarray] = {}
    for shard in range(run.num_shards):
        ids, matrix = embedded(run.path("embeddings", shard), 32)
        found |= dict(zip(ids, matrix.astype(np.float64), strict=True))
    return found


@pytest.mark.parametrize("rounds", nightly(1, 2))
def test_vectors_that_are_read(tmp_path, source, rounds, monkeypatch):
    """Counted where Parquet is read, with a row group for each vector."""
    read: Counter[str] = Counter()

    class Counted(pq.ParquetFile):
        def read_row_group(self, i: int, *args: object, **given: object) -> pa.Table:
            table = super().read_row_group(i, *args, **given)
            read[stage] += table.num_rows * ("feature_arr" in table.column_names)
            return table

    monkeypatch.setattr(embed, "ROWS_PER_GROUP", 1)
    monkeypatch.setattr(sampling, "STAND_INS", 16)
    monkeypatch.setattr(sampling, "SAMPLE", 40)
    # Where quality counts, the first round is applied as a whole.
    selection = {"scope": "corpus", "rounds": rounds, "quality_weight": 0.95}
    chosen = settings(source, selection=selection)
    run = finish(tmp_path / "run", chosen, "embeddings")
    monkeypatch.setattr(pq, "ParquetFile", Counted)
    learning = [stage for stage in LEARNING if stage in stages_of(run.settings)]
    for stage in learning:
        run_stage(run, stage, Compute())
    number = run.receipt("quality", 0).metrics["kept_total"]
    assert set(+read) <= {"corpus_statistics", "round", "learning", "outcome"}
    assert read["corpus_statistics"] == 40 + 16 < number
    # Those in the selection or of top quality, and a sample, at most.
    assert 0 < read["outcome"] < number
    if rounds == 1:
        assert (read["round"], read["learning"]) == (number, 0)
        return
    proposed = [
        pq.read_table(run.path("round", shard))["proposed"][0].values.to_numpy()
        for shard in range(run.num_shards)
    ]
    assert run.receipt("round_total", 1).metrics["share"] == 1
    inclusion, share = 1 / (1 + np.exp(-np.concatenate(proposed))), 30 / number
    may_move = (inclusion > 0.01 * share) & (1 - inclusion > 0.01 * (1 - share))
    assert 0 < may_move.sum() < number
    assert (read["round"], read["learning"]) == (number + may_move.sum(), number)


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Run:
    """A run that learned from a third of the corpus."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "STAND_INS", 16)
        patch.setattr(sampling, "SAMPLE", 32)
        chosen = settings(source, selection=ONCE | {"metric": "pairwise"})
        return finish(tmp_path_factory.mktemp("sampled") / "run", chosen)


def test_documents_are_read_in_the_order_asked_for(sampled):
    """Some of a shard against all of it."""
    rows = np.array([7, 0, 30, 4])
    whole = with_vectors(sampled, read_quality(sampled, 0))
    assert whole.features.shape == (len(whole.ids), 32)
    some = with_vectors(sampled, read_quality(sampled, 0), rows)
    assert some.ids.to_pylist() == whole.ids.take(rows).to_pylist()
    assert (some.quality == whole.quality[rows]).all()
    assert (some.features == whole.features[rows]).all()
    assert (some.scores["edu"] == whole.scores["edu"][rows]).all()


def test_the_result_is_valued_exactly(sampled):
    """Values of the terms against numpy over the vectors; the budget is met; the report warns."""
    of = vectors(sampled)
    found = {row["term"]: row for row in query(sampled, "FROM terms")}
    quality = {row["id"]: row["quality"] for row in table_of(sampled, "quality").to_pylist()}
    ours = [row["id"] for row in masks(sampled) if row["selected"]]
    best = sorted(of, key=lambda name: (-quality[name], name))[: len(ours)]
    assert len(ours) == 30
    for names, column in ((ours, "selected"), (best, "top_quality")):
        matrix, scores = np.stack([of[name] for name in names]), [quality[name] for name in names]
        for term, value in by_definition(matrix, np.array(scores), "pairwise").items():
            assert found[term][column] == pytest.approx(value, rel=1e-4)
    assert all((row["logit"] > 0) == row["selected"] for row in masks(sampled))
    (line,) = [line for line in answer(sampled).warnings if "judged once" in line]
    lost = sampled.receipt("round_total").metrics["sample"]["shortfall"]
    assert f"sample of 32 documents; a second sample confirmed {1 - lost:.0%}" in line


def test_the_mask_model_judges_other_documents(sampled, source, tmp_path):
    """Its threshold keeps about the share that the run keeps."""
    run = rebuild(tmp_path / "applied", settings_to_apply(sampled, sampled.settings.source))
    kept = sum(row["selected"] for row in masks(run))
    assert 15 <= kept <= 45
